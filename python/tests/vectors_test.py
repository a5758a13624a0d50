"""Tests that the package computes and decides as the files in tests/vectors say, like C++."""

from python.testing import requirements
requirements.need('numpy', 'google.protobuf')

import json
import unittest

import numpy as np

from sluice.protocol import codec
from sluice.protocol import core as core_lib
from sluice.protocol import elements
from sluice.protocol import encoder
from sluice.protocol import frame
from sluice.protocol import gradients
from sluice.protocol import layout
from sluice.protocol import sequence
from sluice.protocol import wire
from tests.vectors import make_decisions
from tools import unittest_main


def section(name):
    with open('tests/vectors/values.json', encoding='utf-8') as file:
        rows = json.load(file)[name]
    assert rows
    return rows


def array(dtype, hexadecimal):
    return np.frombuffer(bytearray.fromhex(hexadecimal), dtype=elements.STORAGE[dtype])


class Values(unittest.TestCase):

    def test_sample_order_matches_the_file(self):
        for row in section('orders'):
            order = sequence.SampleOrder(row['samples'], row['seed'], row['shuffle'])
            wanted = row['indices']
            self.assertEqual(order.indices_of(row['begin'], row['begin'] + len(wanted)), wanted)
            self.assertEqual(order.index_at(row['begin']), wanted[0])

    def test_steps_match_the_file(self):
        for row in section('plans'):
            plan = sequence.StepSchedule(row['samples'], row['batch'], row['microbatch'])
            self.assertEqual(plan.steps_per_epoch(), row['steps_per_epoch'])
            self.assertEqual(plan.microbatches_per_step(), row['microbatches_per_step'])
            for step in row['steps']:
                number = step[0]
                self.assertEqual(step, [number, *plan.positions_of_step(number),
                                        plan.microbatches_of_step(number),
                                        *plan.positions_of(number, 1, 3)])

    def test_layout_matches_the_file(self):
        for row in section('layouts'):
            table = wire.TensorTable.FromString(bytes.fromhex(row['table']))
            made = layout.make_layout(table, row['partitions'])
            layout.validate_layout(table, made)
            self.assertEqual([[b.tensor, b.offset, b.count, b.partition] for b in made.blocks],
                             row['blocks'])
            index = layout.LayoutIndex(table, made)
            self.assertEqual(layout.place_partitions(index, 2), row['owners_of_2'])
            self.assertEqual(layout.place_partitions(index, 3), row['owners_of_3'])

    def test_maximal_subtrees_match_the_file(self):
        for row in section('subtrees'):
            roots = gradients.maximal_subtrees([tuple(r) for r in row['ranges']])
            self.assertEqual([list(root) for root in roots], row['roots'])

    def test_codec_rounding_matches_the_file(self):
        for row in section('codecs'):
            values = array(row['dtype'], row['values'])
            encoded = codec.encode(row['codec'], row['dtype'], values).tobytes()
            self.assertEqual(encoded.hex(), row['encoded'])
            decoded = np.empty_like(values)
            codec.decode_into(row['codec'], row['dtype'], encoded, decoded)
            self.assertEqual(decoded.tobytes().hex(), row['decoded'])

    def test_lossy_codecs_match_the_file(self):
        for row in section('lossy'):
            values = array(row['dtype'], row['values'])
            options = codec.Options(fraction=row['fraction'], threshold=row['threshold'])
            encoded = codec.encode(row['codec'], row['dtype'], values, options).tobytes()
            self.assertEqual(encoded.hex(), row['encoded'])
            decoded = np.empty_like(values)
            codec.decode_into(row['codec'], row['dtype'], encoded, decoded)
            np.testing.assert_array_equal(decoded, array(row['dtype'], row['decoded']))

    def test_error_feedback_matches_the_file(self):
        for row in section('feedback'):
            training = wire.TrainingSpec(push_codec=row['codec'])
            training.compression.fraction = row['fraction']
            training.compression.threshold = row['threshold']
            training.compression.error_feedback = True
            made = encoder.GradientEncoder(training)
            for step, wanted in enumerate(row['payloads']):
                gradient = array(row['dtype'], row['gradients'][step])
                for _ in range(2):
                    payload = made.encode((0, 4), 0, row['dtype'], gradient)
                    self.assertEqual(bytes(payload).hex(), wanted)
                made.rollback() if step == row['rolled_back'] else made.commit()

    def test_rejects_invalid_payloads_and_writes_nothing(self):
        block = np.arange(5, dtype='<f4')
        for which in (wire.CODEC_TOP_K, wire.CODEC_INT8, wire.CODEC_ONE_BIT,
                      wire.CODEC_SIGN_THRESHOLD):
            good = codec.encode(which, wire.FLOAT32, block).tobytes()
            padded = good[:-1] + b'\xff'
            for bad in (b'', good[:-1], good + b'\0', b'\xff' * len(good), padded):
                if which == wire.CODEC_INT8 and len(bad) == len(good):
                    continue  # any bytes are valid numbers
                if which == wire.CODEC_TOP_K and bad == padded:
                    continue
                out = np.full(5, 7, dtype='<f4')
                with self.assertRaises(ValueError, msg=(which, bad)):
                    codec.decode_into(which, wire.FLOAT32, bad, out)
                self.assertEqual(out.tolist(), [7] * 5)

    def test_gradient_sums_match_the_file(self):
        for row in section('sums'):
            total = elements.add(row['dtype'], array(row['dtype'], row['left']),
                                 array(row['dtype'], row['right']))
            self.assertEqual(total.tobytes().hex(), row['sum'])

    def test_initial_values_match_the_file(self):
        for row in section('uniforms'):
            values = sequence.uniform(row['seed'], row['name'], row['bound'], 5)
            self.assertEqual(values.tobytes().hex(), row['values'])

    def test_frames_match_the_file(self):
        for row in section('frames'):
            header = wire.Header.FromString(bytes.fromhex(row['header']))
            payload = bytes.fromhex(row['payload'])
            encoded = frame.encode(header, [payload[:7], payload[7:]])
            self.assertEqual(encoded.hex(), row['frame'])
            self.assertEqual(frame.decode(encoded), (header, payload))

    def test_batches_match_the_file(self):
        for row in section('batches'):
            frames = [bytes.fromhex(encoded) for encoded in row['frames']]
            message = frame.join([([encoded], len(encoded)) for encoded in frames])
            self.assertEqual(message.hex(), row['message'])
            self.assertEqual(frame.decode_all(message), [frame.decode(one) for one in frames])

    def test_shared_payloads_match_the_file(self):
        for row in section('shared'):
            header = wire.Header.FromString(bytes.fromhex(row['header']))
            place = wire.SharedPayload(offset=row['offset'], bytes=row['bytes'])
            parts, size = frame.shared_parts(header, place)
            self.assertEqual((b''.join(parts).hex(), size),
                             (row['frame'], len(row['frame']) // 2))
            taken = []

            def take(where, taken=taken):
                taken.append(where)
                return memoryview(bytes(where.bytes))

            self.assertEqual(frame.decode(b''.join(parts), take), (header, bytes(5000)))
            self.assertEqual(taken, [place])

    def test_rejects_invalid_frames(self):
        for row in section('malformed'):
            with self.assertRaises(frame.MalformedFrame, msg=row):
                frame.decode_all(bytes.fromhex(row))


def replay(core, event):
    """Passes an event of decisions.json to the core."""
    at = event['at']
    kind = event['event']

    def parsed(message, field):
        return message.FromString(bytes.fromhex(event[field]))

    table = make_decisions.make_table()
    if kind == 'coordinator_message':
        return core.on_coordinator_message(parsed(wire.CoordinatorMessage, 'message'), at)
    if kind == 'shard_connected':
        return core.on_shard_connected(event['shard'], at)
    if kind == 'shard_broken':
        return core.on_shard_broken(event['shard'], at)
    if kind == 'shard_frame':
        return core.on_shard_frame(event['shard'], parsed(wire.Header, 'header'),
                                   memoryview(bytes.fromhex(event['payload'])), at)
    if kind == 'model_ready':
        return core.on_model_ready(parsed(wire.TensorTable, 'table'), event['training_samples'],
                                   event['evaluation_samples'], at)
    if kind == 'initial_tensor':
        content = array(table.tensors[event['tensor']].dtype, event['content'])
        return core.on_initial_tensor(parsed(wire.InitId, 'init_id'), event['tensor'], content, at)
    if kind == 'tensor':
        gradient = None
        if event['gradient'] is not None:
            gradient = array(table.tensors[event['tensor']].dtype, event['gradient'])
        return core.on_tensor(event['compute'], event['tensor'], gradient, at)
    if kind in ('computed', 'evaluated'):
        result = core_lib.ComputeResult(
            **{field: event[field] for field in (
                'samples', 'loss_sum', 'correct', 'data_seconds', 'compute_seconds')})
        return getattr(core, 'on_' + kind)(event['compute'], result, at)
    if kind == 'sent':
        core.on_sent(at)
        return []
    if kind == 'leave':
        return core.on_leave(event['reason'], event['grace'], at)
    return getattr(core, 'on_' + kind)(at)


class Decisions(unittest.TestCase):

    def test_core_matches_every_life_in_the_file(self):
        with open('tests/vectors/decisions.json', encoding='utf-8') as file:
            lives = json.load(file)
        self.assertGreaterEqual(len(lives), 5)
        for life in lives:
            core = core_lib.WorkerCore(core_lib.Options(
                process=wire.ProcessId(role=wire.WORKER, index=2, incarnation=100),
                job='default/vectors/1', host='here', pid=7))
            for number, event in enumerate(life['events']):
                done = [make_decisions.describe(action) for action in replay(core, event)]
                self.assertEqual(done, event['actions'],
                                 f'life {life["name"]!r}, event {number}: {event["event"]}')

    def test_file_is_up_to_date(self):
        with open('tests/vectors/decisions.json', encoding='utf-8') as file:
            lives = json.load(file)
        self.assertEqual(lives, json.loads(json.dumps(list(make_decisions.lives()))))


if __name__ == '__main__':
    unittest_main.main()
