"""Tests of cases that the shared vectors do not cover: broken frames, sums of trees, ranges, sample
order."""

from python.testing import requirements
requirements.need('numpy', 'google.protobuf')

import math
import random
import time
import unittest

import numpy as np

from sluice.protocol import actions
from sluice.protocol import context
from sluice.protocol import core as core_lib
from sluice.protocol import elements
from sluice.protocol import frame
from sluice.protocol import gradients
from sluice.protocol import intervals
from sluice.protocol import layout
from sluice.protocol import outgoing as outgoing_lib
from sluice.protocol import receive
from sluice.protocol import sequence
from sluice.protocol import wire
from tests.vectors import make_decisions
from tools import unittest_main


class Frames(unittest.TestCase):

    def test_decoder_only_raises_its_own_error(self):
        chance = random.Random(1)
        header = wire.Header(data=wire.Data(version=1, partition=2))
        header.data.blocks.add(block=1, payload_bytes=40)
        good = frame.encode(header, [bytes(40)])
        refused = 0
        for _ in range(3000):
            bad = bytearray(good)
            for _ in range(chance.randint(1, 3)):
                bad[chance.randrange(len(bad))] = chance.randrange(256)
            try:
                decoded, payload = frame.decode(bytes(bad[:chance.randint(0, len(bad))]))
                frame.check_payload_size(decoded, len(payload))
            except frame.MalformedFrame:
                refused += 1
        self.assertGreater(refused, 1000)

    def test_error_names_the_limit(self):
        with self.assertRaisesRegex(frame.MalformedFrame, 'over the limit of 2097152'):
            frame.decode(b'\x12' + frame._varint(3 << 20) + bytes(3 << 20))


class Batches(unittest.TestCase):

    @staticmethod
    def messages(frames, peer_takes):
        outgoing = outgoing_lib.Outgoing()
        outgoing.peer_takes = peer_takes
        outgoing.put(frames[:2])
        outgoing.put(frames[2:])
        outgoing.end()
        return [frame.decode_all(message) for message in outgoing.messages()]

    def test_waiting_frames_are_sent_together_in_order(self):
        frames = [(wire.Header(pull=wire.Pull(version=v)), []) for v in range(5)]
        together, = self.messages(frames, 256)
        self.assertEqual([header.pull.version for header, _ in together], list(range(5)))

    def test_taking_the_next_message_means_the_last_was_sent(self):
        frames = [(wire.Header(pull=wire.Pull(version=v)), []) for v in range(2)]
        outgoing = outgoing_lib.Outgoing()
        outgoing.put(frames)
        outgoing.end()
        messages = outgoing.messages()
        next(messages)
        next(messages)
        self.assertEqual(outgoing.sent_at, -math.inf, 'it may not have been sent yet')
        began = time.monotonic()
        self.assertIsNone(next(messages, None))
        self.assertGreaterEqual(outgoing.sent_at, began)

    def test_peer_without_batches_gets_one_frame_at_a_time(self):
        frames = [(wire.Header(pull=wire.Pull(version=v)), []) for v in range(5)]
        for takes in (0, 1):
            self.assertEqual([len(m) for m in self.messages(frames, takes)], [1] * 5)
        self.assertEqual([len(m) for m in self.messages(frames, 2)], [2, 2, 1])

    def test_large_frames_are_sent_alone(self):
        header = wire.Header(data=wire.Data())
        header.data.blocks.add(payload_bytes=600 << 10)
        frames = [(header, [bytes(600 << 10)])] * 3
        self.assertEqual([len(m) for m in self.messages(frames, 256)], [1] * 3)


class Order(unittest.TestCase):

    def test_each_epoch_has_every_sample_once_in_its_own_order(self):
        order = sequence.SampleOrder(777, 5)
        epochs = [order.indices_of(e * 777, (e + 1) * 777) for e in range(3)]
        for indices in epochs:
            self.assertEqual(sorted(indices), list(range(777)))
        self.assertNotEqual(epochs[0], epochs[1])

    def test_range_across_epochs_is_the_sum_of_its_parts(self):
        order = sequence.SampleOrder(10, 5)
        self.assertEqual(order.indices_of(7, 14),
                         order.indices_of(7, 10) + order.indices_of(10, 14))

    def test_order_does_not_depend_on_the_size_of_requests(self):
        whole = sequence.SampleOrder(2500, 5).indices_of(0, 7500)
        for size in (1, 33, 1024, 1500, 2600):
            order = sequence.SampleOrder(2500, 5)
            parts = [order.indices_of(at, min(at + size, 7500)) for at in range(0, 7500, size)]
            self.assertEqual([index for part in parts for index in part], whole)


class Intervals(unittest.TestCase):

    def test_intervals_behave_like_sets(self):
        chance = random.Random(3)
        for _ in range(300):
            ranges, model = intervals.IntervalSet(), set()
            for _ in range(12):
                begin = chance.randrange(30)
                end = begin + chance.randrange(8)
                if chance.random() < 0.6:
                    ranges.add(begin, end)
                    model |= set(range(begin, end))
                else:
                    ranges.remove(begin, end)
                    model -= set(range(begin, end))
            self.assertEqual({i for b, e in ranges.ranges() for i in range(b, e)}, model)
            self.assertEqual(ranges.contains_all(5, 9), set(range(5, 9)) <= model)
            for (_, end), (begin, _) in zip(ranges.ranges(), ranges.ranges()[1:]):
                self.assertLess(end, begin)


class Trees(unittest.TestCase):

    def tree_sum(self, leaves):
        while len(leaves) > 1:
            leaves = [leaves[i] + leaves[i + 1] for i in range(0, len(leaves), 2)]
        return leaves[0]

    def test_partial_sums_follow_the_fixed_tree_after_any_assignments(self):
        chance = random.Random(4)
        table = wire.TensorTable(tensors=[wire.TensorSpec(name='w', shape=[3],
                                                          dtype=wire.FLOAT32)])
        leaves = np.random.default_rng(1).standard_normal((16, 3)).astype(np.float32)
        for _ in range(60):
            held = gradients.StepGradients(table, tree=True)
            todo = []
            for _ in range(chance.randint(1, 4)):
                begin = chance.randrange(16)
                end = chance.randint(begin + 1, 16)
                todo = [key for key in todo if held.wants(key)]
                todo += held.assign([(begin, end)])
                todo = [key for key in dict.fromkeys(todo) if held.wants(key)]
                for key in chance.sample(todo, chance.randint(0, len(todo))):
                    held.resolve(key, 0, leaves[key[0]])
                    todo.remove(key)
            for key in todo:
                held.resolve(key, 0, leaves[key[0]])
            self.assertTrue(held.is_complete())
            self.assertEqual(held.partial_sums, gradients.maximal_subtrees([(begin, end)]))
            for partial_sum in held.partial_sums:
                np.testing.assert_array_equal(held.get(partial_sum, 0),
                                              self.tree_sum(list(leaves[partial_sum[0]:partial_sum[1]])))

    def test_sum_with_a_missing_gradient_is_the_other_one(self):
        table = wire.TensorTable(tensors=[wire.TensorSpec(name='w', shape=[1],
                                                          dtype=wire.FLOAT32)])
        held = gradients.StepGradients(table, tree=True)
        held.assign([(0, 2)])
        only = np.ones(1, np.float32)
        held.resolve((0, 1), 0, None)
        self.assertEqual(held.resolve((1, 2), 0, only), (0, 2))
        self.assertIs(held.get((0, 2), 0), only)


class Receiver(unittest.TestCase):

    def setUp(self):
        table = make_decisions.make_table()
        self.index = layout.LayoutIndex(table, layout.make_layout(table, 1))
        self.receiver = receive.VersionReceiver(actions.Buffer.INCOMING)
        self.receiver.reset(self.index)

    def refused(self, data, payload, why):
        out = []
        with self.assertRaisesRegex(context.ContractError, why):
            self.receiver.accept(data, memoryview(payload), out)
        return out

    def test_stores_nothing_of_an_invalid_frame(self):
        data = wire.Data(partition=0)
        data.blocks.add(block=0, payload_bytes=3)
        self.assertEqual(self.refused(data, bytes(3), 'has 3 bytes, not'), [])
        data = wire.Data(partition=0)
        data.blocks.add(block=77, payload_bytes=3)
        self.assertEqual(self.refused(data, bytes(3), 'not of partition'), [])
        self.assertEqual(self.refused(wire.Data(partition=9), b'', 'partition 9 of 1'), [])

    def test_frame_similar_to_a_valid_one_is_checked_fully(self):
        size = self.index.bytes[0]
        good = wire.Data(partition=0, version=1)
        good.blocks.add(block=0, payload_bytes=size)
        for version in (1, 2):
            self.receiver.reset(self.index)
            good.version = version
            out = []
            self.receiver.accept(good, memoryview(bytes([version]) * size), out)
            self.assertEqual([bytes(store.payload) for store in out], [bytes([version]) * size])
        self.receiver.reset(self.index)
        self.refused(good, bytes(size + 1), 'holds blocks of')
        self.refused(good, bytes(size - 1), 'longer than its frame')
        shorter = wire.Data(partition=0)
        shorter.blocks.add(block=0, payload_bytes=size - 1)
        self.refused(shorter, bytes(size - 1), 'bytes, not')
        elsewhere = wire.Data(partition=1)
        elsewhere.blocks.MergeFrom(good.blocks)
        self.refused(elsewhere, bytes(size), 'partition 1 of 1')

    def test_rejects_partition_that_ends_early(self):
        self.refused(wire.Data(partition=0, last=True), b'', 'blocks missing')


class Core(unittest.TestCase):

    def setUp(self):
        self.core = core_lib.WorkerCore(core_lib.Options(
            process=wire.ProcessId(role=wire.WORKER, incarnation=100), job='a/b/c'))
        self.core.on_coordinator_connected(0.0)

    def tell(self, **body):
        return self.core.on_coordinator_message(wire.CoordinatorMessage(**body), 1.0)

    def test_does_not_join_all_reduce_job(self):
        job = wire.JobSpec()
        job.training.dense.aggregation = 1
        done = self.tell(registered=wire.Registered(job=job))
        self.assertEqual([type(action) for action in done], [actions.Exit])
        self.assertEqual(done[0].reason, actions.ExitReason.REFUSED)
        self.assertIn('AllReduce', done[0].message)

    def test_adopts_no_version_while_the_user_reads_the_current_one(self):
        world = make_decisions.World('w', 1, wire.SYNCHRONOUS)
        world.begin()
        world.change_view(0)
        world.core.on_adoptable(False, world.now)
        while world.connecting or world.requests:
            world.connect() if world.connecting else world.answer()
        self.assertIsNone(world.core._mode.current_version())
        done = world.core.on_adoptable(True, world.now)
        self.assertIn(actions.AdoptVersion(0), done)

    def test_drops_frames_after_an_invalid_frame(self):
        world = make_decisions.World('w', 2, wire.SYNCHRONOUS)
        world.begin()
        world.change_view(0)
        while not world.computes:
            world.connect() if world.connecting else world.answer()
        shard = world.core.view.shards[0].process.incarnation
        nothing = memoryview(b'')
        frames = [(wire.Header(credit=wire.Credit(bytes=1)), nothing),
                  (wire.Header(hello_reply=wire.HelloReply()), nothing),
                  (wire.Header(hello_reply=wire.HelloReply()), nothing)]
        done = world.core.on_shard_frames(shard, frames, world.now)
        self.assertEqual([type(action) for action in done], [actions.DisconnectShard])
        self.assertIn('HelloReply', done[0].reason)
        # One break, not two: it waits as long as after one break.
        self.assertLess(world.core.next_deadline(), world.now + 0.06)

    def test_sends_gradients_given_together_in_one_frame(self):
        world = make_decisions.World('w', 1, wire.SYNCHRONOUS)
        world.begin()
        world.change_view(0)
        while not world.computes:
            world.connect() if world.connecting else world.answer()
        compute = world.computes[0].id
        gradients = [(i, world.values(i, 1)) for i, spec in enumerate(world.table.tensors)
                     if spec.kind != wire.COUNTER]
        done = world.core.on_tensors(compute, gradients, world.now)
        sent = [action.header.push for action in done if isinstance(action, actions.SendFrame)]
        named = [partition for push in sent for partition in push.complete]
        self.assertEqual(len(named), len(set(named)))
        blocks = [block.block for push in sent for block in push.blocks]
        self.assertEqual(len(blocks), len(set(blocks)))
        self.assertEqual(set(blocks), set(range(len(world.layout.blocks))) -
                         {i for i, block in enumerate(world.layout.blocks) if
                          world.table.tensors[block.tensor].kind == wire.COUNTER})

    def test_wrong_gradient_shape_fails_the_job_with_the_name(self):
        world = make_decisions.World('w', 2, wire.SYNCHRONOUS)
        world.begin()
        world.change_view(0)
        while not world.computes:
            world.connect() if world.connecting else world.answer()
        done = world.core.on_tensor(world.computes[0].id, 0, np.zeros(5), world.now)
        self.assertEqual(type(done[-1]), actions.Exit)
        self.assertIn('gradient of a has 5 elements', done[-1].message)

    def test_heartbeats_follow_the_jobs_interval(self):
        job = wire.JobSpec()
        job.timeouts.heartbeat = 2.0
        done = self.tell(registered=wire.Registered(job=job))
        self.assertTrue(done[-1].message.HasField('heartbeat'))
        self.assertEqual(self.core.next_deadline(), 3.0)
        self.assertEqual(self.core.on_tick(2.9), [])
        self.assertEqual(len(self.core.on_tick(3.0)), 1)

    def test_view_with_unknown_shard_fails_the_job(self):
        table = make_decisions.make_table()
        view = wire.View(owner=[0, 0])
        view.id.number = 1
        done = self.tell(new_view=wire.NewView(view=view, table=table,
                                               layout=layout.make_layout(table, 2)))
        self.assertEqual(done[-1].reason, actions.ExitReason.FAILED)
        self.assertIn('no shard 0', done[-1].message)

    def test_does_nothing_after_exit(self):
        self.tell(finish=wire.Finish(succeeded=True))
        self.assertEqual(self.tell(registered=wire.Registered()), [])
        self.assertEqual(self.core.on_tick(100.0), [])


class Elements(unittest.TestCase):

    def test_bfloat16_rounds_to_nearest_even_and_keeps_nan(self):
        values = np.array([1.0, 257.0, 259.0, np.nan, -np.inf, 3.4e38], np.float32)
        back = elements.bfloat16_to_float32(elements.float32_to_bfloat16(values))
        np.testing.assert_array_equal(back, [1.0, 256.0, 260.0, np.nan, -np.inf, np.inf])


if __name__ == '__main__':
    unittest_main.main()
