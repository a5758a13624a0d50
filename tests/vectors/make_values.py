"""Makes values.json: orders of samples, step plans, layouts, codecs, sums, frames.

    PYTHONPATH=python python3 tests/vectors/make_values.py tests/vectors/values.json

Numbers are hexadecimal bytes, little endian, wherever their bits matter.
"""

import json
import sys

import numpy as np

from sluice.protocol import codec
from sluice.protocol import elements
from sluice.protocol import encoder
from sluice.protocol import frame
from sluice.protocol import gradients
from sluice.protocol import layout
from sluice.protocol import sequence
from sluice.protocol import wire

_INTERESTING = [0.0, -0.0, 1.0, -1.5, 0.1, 257.0, 259.0, 2049.0, 2051.0, 65504.0, 65519.0, 65520.0,
                -1e30, 1e30, np.inf, -np.inf, 2.0**-14, 2.0**-24, 1.5 * 2.0**-24, 2.0**-25,
                1023 * 2.0**-24, 2.0**-126, 2.0**-133, 2.0**-134, 1 + 2.0**-8, 1 + 2.0**-9,
                1 + 2.0**-8 + 2.0**-30]


def orders():
    for samples, seed, shuffle in ((1, 0, True), (2, 7, True), (5, 3, True), (1000, 1, True),
                                   (60000, 2**64 - 1, True), (2**40, 42, True), (10, 5, False)):
        for begin in (0, samples - 1, 3 * samples):
            indices = sequence.SampleOrder(samples, seed, shuffle).indices_of(begin, begin + 12)
            yield {'samples': samples, 'seed': seed, 'shuffle': shuffle, 'begin': begin,
                   'indices': indices}


def plans():
    for samples, batch, microbatch in ((100, 32, 8), (7, 32, 4), (1000, 10, 3), (64, 64, 64)):
        plan = sequence.StepSchedule(samples, batch, microbatch)
        steps = []
        for step in (0, 1, plan.steps_per_epoch() - 1, plan.steps_per_epoch(), 1000):
            steps.append([step, *plan.positions_of_step(step), plan.microbatches_of_step(step),
                          *plan.positions_of(step, 1, 3)])
        yield {'samples': samples, 'batch': batch, 'microbatch': microbatch,
               'steps_per_epoch': plan.steps_per_epoch(),
               'microbatches_per_step': plan.microbatches_per_step(), 'steps': steps}


def layouts():
    kinds = {wire.INT64: wire.COUNTER}
    for partitions, shapes in (
            (8, [([256, 784], wire.FLOAT32), ([256], wire.FLOAT32), ([10, 256], wire.FLOAT32),
                 ([10], wire.FLOAT32)]),
            (3, [([5], wire.FLOAT64), ([], wire.INT64), ([0, 4], wire.FLOAT32),
                 ([7, 3], wire.BFLOAT16)]),
            (16, [([3000, 300], wire.FLOAT32), ([100, 300], wire.FLOAT16)])):
        table = wire.TensorTable()
        for number, (shape, dtype) in enumerate(shapes):
            table.tensors.add(name=f't{number}', shape=shape, dtype=dtype,
                              kind=kinds.get(dtype, wire.PARAMETER))
        made = layout.make_layout(table, partitions)
        index = layout.LayoutIndex(table, made)
        yield {'table': table.SerializeToString().hex(), 'partitions': partitions,
               'blocks': [[b.tensor, b.offset, b.count, b.partition] for b in made.blocks],
               'owners_of_2': layout.place_partitions(index, 2),
               'owners_of_3': layout.place_partitions(index, 3)}


def subtrees():
    for ranges in ([(0, 8)], [(0, 5)], [(3, 8)], [(1, 7)], [(0, 1), (2, 4)], [(2, 4), (4, 6)],
                   [(5, 6)], [(11, 64)], []):
        yield {'ranges': ranges, 'roots': gradients.maximal_subtrees(ranges)}


def codecs():
    for dtype in (wire.FLOAT32, wire.FLOAT64):
        with np.errstate(over='ignore'):
            values = np.array(_INTERESTING, dtype=elements.STORAGE[dtype])
        for which in (wire.CODEC_FLOAT16, wire.CODEC_BFLOAT16):
            encoded = codec.encode(which, dtype, values)
            decoded = np.empty_like(values)
            codec.decode_into(which, dtype, encoded.tobytes(), decoded)
            yield {'codec': which, 'dtype': dtype, 'values': values.tobytes().hex(),
                   'encoded': encoded.tobytes().hex(), 'decoded': decoded.tobytes().hex()}


_SPECIAL = [v for v in _INTERESTING if abs(v) < 1e38]


def lossy():
    """For each lossy codec: random numbers, ties, incomplete groups, no elements, NaN and infinity."""
    numbers = np.random.default_rng(5)
    blocks = [[], [0.0], [-0.0, 0.0], [1.0, -1.0, 1.0, -1.0, 1.0], _SPECIAL,
              (numbers.normal(size=530) * 1e-2).tolist(), numbers.normal(size=40).tolist(),
              [1.0] * 255 + [np.inf, -1.0, np.nan, 0.5]]
    for which, options in ((wire.CODEC_TOP_K, {'fraction': 0.3}), (wire.CODEC_TOP_K, {}),
                           (wire.CODEC_INT8, {}), (wire.CODEC_ONE_BIT, {}),
                           (wire.CODEC_SIGN_THRESHOLD, {'threshold': 0.3})):
        made = codec.Options(**options)
        for dtype in (wire.FLOAT32, wire.FLOAT64):
            for block in blocks:
                values = np.array(block, dtype=elements.STORAGE[dtype])
                encoded = codec.encode(which, dtype, values, made).tobytes()
                decoded = np.empty_like(values)
                codec.decode_into(which, dtype, encoded, decoded)
                # Any NaN is accepted.
                decoded[np.isnan(decoded)] = np.nan
                yield {'codec': which, 'dtype': dtype, 'fraction': made.fraction,
                       'threshold': made.threshold, 'values': values.tobytes().hex(),
                       'encoded': encoded.hex(), 'decoded': decoded.tobytes().hex()}


def feedback():
    """Gradients of one block, step by step, and the encoded gradients that are pushed."""
    numbers = np.random.default_rng(6)
    for which in (wire.CODEC_FLOAT16, wire.CODEC_BFLOAT16, wire.CODEC_TOP_K, wire.CODEC_INT8,
                  wire.CODEC_ONE_BIT, wire.CODEC_SIGN_THRESHOLD):
        for dtype in (wire.FLOAT32, wire.FLOAT64):
            training = wire.TrainingSpec(push_codec=which)
            training.compression.fraction = 0.2
            training.compression.threshold = 0.5
            training.compression.error_feedback = True
            made = encoder.GradientEncoder(training)
            gradients_of_steps, payloads = [], []
            for step in range(6):
                gradient = numbers.normal(size=21).astype(elements.STORAGE[dtype])
                if step == 3:
                    gradient[4] = np.inf
                payload = made.encode((0, 4), 0, dtype, gradient)
                if step == 2:  # a view change withdraws the step
                    made.rollback()
                else:
                    made.commit()
                gradients_of_steps.append(gradient.tobytes().hex())
                payloads.append(bytes(payload).hex())
            yield {'codec': which, 'dtype': dtype, 'fraction': 0.2, 'threshold': 0.5,
                   'rolled_back': 2, 'gradients': gradients_of_steps, 'payloads': payloads}


def sums():
    finite = [value for value in _INTERESTING if abs(value) < 1e20]
    for dtype in (wire.FLOAT32, wire.FLOAT64, wire.BFLOAT16, wire.FLOAT16):
        left, right = np.array(finite, dtype=np.float32), np.array(finite[::-1], dtype=np.float32)
        if dtype == wire.BFLOAT16:
            left, right = elements.float32_to_bfloat16(left), elements.float32_to_bfloat16(right)
        else:
            with np.errstate(over='ignore'):
                left = left.astype(elements.STORAGE[dtype]) / elements.STORAGE[dtype].type(3)
                right = right.astype(elements.STORAGE[dtype])
        both = np.isfinite(left.astype(np.float64)) & np.isfinite(right.astype(np.float64))
        left, right = left[both], right[both]
        yield {'dtype': dtype, 'left': left.tobytes().hex(), 'right': right.tobytes().hex(),
               'sum': elements.add(dtype, left, right).tobytes().hex()}


def uniforms():
    for seed, name, bound in ((0, 'fc1.weight', 1.0), (42, 'layers.0.bias', 0.125)):
        yield {'seed': seed, 'name': name, 'bound': bound,
               'values': sequence.uniform(seed, name, bound, 5).tobytes().hex()}


def frames():
    empty = wire.Header()
    pull = wire.Header(pull=wire.Pull(version=300, partitions=[0, 5, 127, 128]))
    pull.view.attempt = 2
    pull.view.term.counter = 3
    pull.view.term.coordinator = 2**63 + 5
    push = wire.Header(push=wire.Push(step=7, partition=2, complete=[2], samples=64))
    push.push.microbatches.end = 4
    push.push.blocks.add(block=1, payload_bytes=100)
    push.push.blocks.add(block=9, payload_bytes=50, codec=wire.CODEC_BFLOAT16)
    for header, payload in ((empty, b''), (pull, b''), (push, bytes(range(150)))):
        yield {'header': header.SerializeToString(deterministic=True).hex(),
               'payload': payload.hex(), 'frame': frame.encode(header, [payload]).hex()}


def batches():
    pull = wire.Header(pull=wire.Pull(version=3))
    data = wire.Header(data=wire.Data(version=4, last=True))
    data.data.blocks.add(block=2, payload_bytes=200)
    frames = [frame.encode(pull), frame.encode(data, [bytes(range(200))]), frame.encode(pull)]
    yield {'frames': [encoded.hex() for encoded in frames],
           'message': frame.join([([encoded], len(encoded)) for encoded in frames]).hex()}


def shared():
    data = wire.Header(data=wire.Data(version=4, partition=1, last=True))
    data.data.blocks.add(block=2, payload_bytes=5000)
    for offset in (0, 4096, 31 << 20):
        place = wire.SharedPayload(offset=offset, bytes=5000)
        encoded, _ = frame.shared_parts(data, place)
        yield {'header': data.SerializeToString(deterministic=True).hex(), 'offset': offset,
               'bytes': 5000, 'frame': b''.join(encoded).hex()}


def malformed():
    yield '0a05'          # a header that ends early
    yield '0a00120101'    # a payload without blocks
    yield '0a000a00'      # two headers
    yield '08ff'          # a header of type integer, incomplete
    yield '0800'          # ... and complete
    yield '00'            # the tag 0
    yield '0a0101'        # an invalid header
    yield '1affffffffffffffffff7f'  # a length of more than 64 bits
    yield '1a021a00'      # a batch in a batch
    yield '1a000a00'      # a batch in addition to a header
    yield '1a021200' + '1a0312016a'  # a batch with a payload without a block
    yield '1a00' * 257    # more frames than allowed
    yield '1800'          # a batch of type integer
    yield '22021001'      # a payload in memory that is not shared
    yield '2200'          # ... without a place
    yield '2202100122021001'  # ... at two places
    yield '12016122021001'    # ... in addition to one in the frame
    yield '220510818080' + '01'  # ... that is too large
    yield '1a0022021001'  # ... in addition to a batch
    yield '2000'          # a place of type integer
    yield '2201ff'        # an invalid place


def main(path):
    sections = {'orders': orders, 'plans': plans, 'layouts': layouts, 'subtrees': subtrees,
                'codecs': codecs, 'lossy': lossy, 'feedback': feedback, 'sums': sums,
                'uniforms': uniforms, 'frames': frames, 'batches': batches,
                'shared': shared,
                'malformed': malformed}
    with open(path, 'w', encoding='utf-8') as file:
        parts = []
        for name, make in sections.items():
            rows = ',\n  '.join(json.dumps(row, separators=(',', ':')) for row in make())
            parts.append(f'{json.dumps(name)}:[\n  {rows}]')
        file.write('{' + ',\n'.join(parts) + '}\n')


if __name__ == '__main__':
    main(sys.argv[1])
