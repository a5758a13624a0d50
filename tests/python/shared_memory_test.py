"""Python processes and real shards that share memory: the same bits, and nothing left behind.

The test itself plays shards of another version and broken ones.
"""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf')

import concurrent.futures
import contextlib
import gc
import json
import os
import signal
import tempfile
import threading
import unittest
from unittest import mock

import grpc
import numpy as np

import sluice
from sluice import shared_memory
from sluice import transport
from sluice.protocol import frame
from sluice.protocol import wire
from tests.python import job_processes
from tools import unittest_main

_ELEMENTS = 300000  # in eight partitions: payloads are far from small
_STEPS = 12


def in_use(process='self'):
    """(descriptors, mappings) of shared memory in a process."""
    gc.collect()
    names = []
    for entry in os.scandir(f'/proc/{process}/fd'):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(entry.path))
    with open(f'/proc/{process}/maps', encoding='utf-8') as file:
        mappings = sum('sluice-stream' in line for line in file)
    return sum('sluice-stream' in name for name in names), mappings


def gradients(batch):
    return {'w': np.random.default_rng(batch.step).standard_normal(_ELEMENTS).astype(np.float32)}


def train(job, on_step=lambda step: None):
    with sluice.Worker(job, {'w': np.zeros(_ELEMENTS, np.float32)}) as worker:
        for batch in worker.batches(sluice.ArrayDataset(np.zeros(1000))):
            worker.step(batch, gradients=gradients(batch))
            on_step(batch.step)


# `train` as a separate process.
_PROGRAM = '''
from tests.python import shared_memory_test as test
import sluice
test.train(sluice.join())
'''


class Counted:
    """Counts payloads that go through shared memory in this process, and passes them on."""

    def __init__(self, test):
        self.put = self.taken = 0
        put, take = shared_memory.SharedMemory.put, shared_memory.SharedMemory.take

        def counted_put(memory, pieces, size):
            place = put(memory, pieces, size)
            self.put += place is not None
            return place

        def counted_take(memory, place):
            self.taken += 1
            return take(memory, place)

        for name, function in (('put', counted_put), ('take', counted_take)):
            patch = mock.patch.object(shared_memory.SharedMemory, name, function)
            patch.start()
            test.addCleanup(patch.stop)


@unittest.skipUnless(hasattr(os, 'memfd_create'), 'this system has no memfd')
class Jobs(unittest.TestCase):

    def start(self, steps=_STEPS, shards=2, **changes):
        job = job_processes.base_job(
            training={'steps': steps, **changes.pop('training', {})},
            parameterServer={'replicas': shards}, **changes)
        processes = job_processes.JobProcesses(
            job, tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
        self.addCleanup(processes.__exit__)
        return processes.start()

    def state_hashes(self, processes):
        self.assertEqual(processes.wait_for_exit('coordinator'), 0)
        manifest = json.loads((processes.newest_checkpoint() / 'manifest.json').read_text())
        return {int(file.get('partition', 0)): file['state_hash'] for file in manifest['files']}

    def wait_until_nothing_is_left(self, process='self'):
        job_processes.JobProcesses.wait_until(lambda: in_use(process) == (0, 0), 20,
                                              f'no shared memory is left in {process}')

    def test_every_codec_gives_the_same_bits_as_through_the_socket(self):
        for codecs in ({}, {'push_codec': 'CODEC_FLOAT16', 'pull_codec': 'CODEC_BFLOAT16'},
                       {'push_codec': 'CODEC_INT8'}):
            hashes = []
            for wanted in (True, False):
                counted = Counted(self)
                processes = self.start(training=codecs)
                train(sluice.join(processes.address, shared_memory=wanted))
                hashes.append(self.state_hashes(processes))
                self.assertEqual((counted.put >= 2 * _STEPS, counted.taken >= 2 * _STEPS),
                                 (wanted, wanted), (codecs, counted.put, counted.taken))
            self.assertEqual(*hashes)
        self.wait_until_nothing_is_left()

    def test_an_offer_that_the_shard_cannot_open_falls_back_to_the_socket(self):
        offer = shared_memory.SharedMemory.offer

        def of_another_container(memory):
            made = offer(memory)
            made.token += 1
            return made

        counted = Counted(self)
        processes = self.start()
        with mock.patch.object(shared_memory.SharedMemory, 'offer', of_another_container):
            train(sluice.join(processes.address))
        self.state_hashes(processes)
        self.assertEqual((counted.put, counted.taken), (0, 0))
        self.wait_until_nothing_is_left()

    def test_a_reader_reads_the_same_with_and_without_shared_memory(self):
        processes = self.start(steps=100000)
        processes.start_python_worker(0, '-c', _PROGRAM)
        processes.wait_for_step(3)
        counted = Counted(self)
        for wanted in (True, False):
            before = counted.taken
            tensors = sluice.connect(processes.address, shared_memory=wanted).tensors()
            self.assertEqual(counted.taken > before, wanted)
            total = np.zeros(_ELEMENTS, np.float32)
            for step in range(tensors.version):
                total -= np.float32(0.1) * np.random.default_rng(step).standard_normal(
                    _ELEMENTS).astype(np.float32)
            np.testing.assert_allclose(tensors['w'], total, atol=1e-4)
        self.wait_until_nothing_is_left()

    def test_a_killed_shard_leaves_nothing_behind_and_its_successor_shares_memory(self):
        processes = self.start(steps=60, checkpoint={'intervalSteps': 5})
        seen = {}
        counted = Counted(self)

        def on_step(step):
            if step == 20 and 'killed' not in seen:
                seen['before'] = in_use()
                processes.kill('ps-1')
                processes._spawn('ps-1', [job_processes.program('ps'), *processes._flags(1)])
                seen['killed'] = counted.put
            elif step == 40 and 'after' not in seen:
                seen['after'] = in_use()
                seen['put'] = counted.put

        train(sluice.join(processes.address), on_step)
        self.state_hashes(processes)
        # One for each stream; Python before 3.13 keeps the descriptor as long as the mapping.
        self.assertEqual(seen['before'][1], 2)
        self.assertEqual(seen['after'], seen['before'])
        self.assertGreater(seen['put'], seen['killed'])
        self.wait_until_nothing_is_left()

    def test_a_killed_worker_leaves_nothing_behind_in_the_shards(self):
        processes = self.start(steps=100000)
        processes.start_python_worker(0, '-c', _PROGRAM)
        processes.wait_for_step(3)
        shards = [processes._living[name].pid for name in ('ps-0', 'ps-1')]
        self.assertEqual([in_use(shard) for shard in shards], [(0, 1), (0, 1)])
        processes.kill('worker-0')
        for shard in shards:
            self.wait_until_nothing_is_left(shard)
        processes.start_python_worker(0, '-c', _PROGRAM)
        processes.wait_for_step(processes.progress().step + 3)
        self.assertEqual([in_use(shard) for shard in shards], [(0, 1), (0, 1)])

    def test_a_frozen_worker_does_not_block_others(self):
        processes = self.start(steps=100000, worker={'replicas': 2}, timeouts={'heartbeat_timeout': 1})
        for index in range(2):
            processes.start_python_worker(index, '-c', _PROGRAM)
        processes.wait_for_members(2)
        processes.wait_for_step(3)
        processes.signal('worker-1', signal.SIGSTOP)
        processes.wait_for_members(1)
        processes.wait_for_step(processes.progress().step + 5)
        processes.signal('worker-1', signal.SIGCONT)
        processes.wait_for_members(2)
        processes.wait_for_step(processes.progress().step + 5)


class PlayedShard:
    """Answers each frame with the encoded frames that `answer(header, payload)` returns."""

    def __init__(self, answer):
        def exchange(messages, context):
            del context
            for message in messages:
                for header, payload in frame.decode_all(message, self.take):
                    yield from answer(header, payload)

        self.take = None
        handler = grpc.method_handlers_generic_handler(
            'sluice.v1.ParameterServer',
            {'Exchange': grpc.stream_stream_rpc_method_handler(exchange)})
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=(handler,))
        self.address = f'127.0.0.1:{self._server.add_insecure_port("127.0.0.1:0")}'
        self._server.start()

    def stop(self):
        self._server.stop(None)


class Streams(unittest.TestCase):

    def setUp(self):
        self.changed = threading.Condition()
        self.frames = []
        self.broken = None

    def connect(self, answer, **options):
        shard = PlayedShard(answer)
        self.addCleanup(shard.stop)
        stream = transport.FrameStream(shard.address, self.on_frames, self.on_broken, **options)
        self.addCleanup(stream.close)
        stream.send([(wire.Header(hello=wire.Hello(job='a/b/c')), [])])
        return stream

    def on_frames(self, frames):
        with self.changed:
            self.frames += [(header, bytes(payload)) for header, payload in frames]
            self.changed.notify_all()

    def on_broken(self, why):
        with self.changed:
            self.broken = why
            self.changed.notify_all()

    def wait_for(self, condition):
        with self.changed:
            self.assertTrue(self.changed.wait_for(condition, 20), (self.frames, self.broken))

    @staticmethod
    def data(size, place=None):
        header = wire.Header(data=wire.Data(version=1))
        header.data.blocks.add(payload_bytes=size)
        if place is None:
            return frame.encode(header, [b'x' * size])
        return b''.join(frame.shared_parts(header, wire.SharedPayload(**place))[0])

    @staticmethod
    def reply(**fields):
        return frame.encode(wire.Header(hello_reply=wire.HelloReply(**fields)))

    def test_an_invalid_place_ends_the_stream_and_is_named(self):
        for place, why in (({'offset': 32 << 20, 'bytes': 5000},
                            '5000 bytes at 33554432 of 33554432 bytes of shared memory'),
                           ({'offset': 7, 'bytes': 5000}, '5000 bytes at 7 of'),
                           ({'offset': 0, 'bytes': 3 << 20}, 'over the limit of 2097152')):
            self.broken = None
            with self.assertLogs('sluice', 'WARNING') as logged:
                self.connect(lambda header, payload, place=place: [
                    self.reply(shared_memory_taken=True), self.data(5000, place)])
                self.wait_for(lambda: self.broken)
            self.assertIn(why, self.broken)
            self.assertIn(why, logged.output[0])
        self.assertEqual(in_use()[1], 0)

    def test_a_place_without_offered_memory_is_refused(self):
        with self.assertLogs('sluice', 'WARNING'):
            self.connect(lambda header, payload: [self.reply(),
                                                  self.data(5000, {'offset': 0, 'bytes': 5000})],
                         shared_memory=False)
            self.wait_for(lambda: self.broken)
        self.assertIn('none was agreed on', self.broken)

    def test_a_shard_of_an_older_version_uses_only_the_socket(self):
        received = []

        def answer(header, payload):
            if header.HasField('hello'):
                return [self.reply(window_bytes=1 << 24)]
            received.append(len(payload))  # only through the socket
            return [self.data(6000)]

        stream = self.connect(answer)
        self.wait_for(lambda: self.frames)
        push = wire.Header(push=wire.Push(step=1))
        push.push.blocks.add(payload_bytes=50000)
        stream.send([(push, [memoryview(bytes(50000))])])
        self.wait_for(lambda: len(self.frames) == 2)
        self.assertEqual(received, [50000])
        self.assertEqual(self.frames[1][1], b'x' * 6000)

    def test_without_room_a_payload_goes_through_the_socket(self):
        received = []

        def answer(header, payload):
            if header.HasField('hello'):
                offer = header.hello.shared_memory
                with open(f'/proc/{offer.pid}/fd/{offer.file}', 'r+b') as file:
                    memory = shared_memory._map(
                        file.fileno(), shared_memory.SharedMemory.file_bytes(offer.half_bytes))
                server = shared_memory.SharedMemory(memory, offer.half_bytes, client=False)
                shard.take = server.take
                return [self.reply(shared_memory_taken=True)]
            received.append(payload)  # never released
            return [self.data(1)]

        shard = PlayedShard(answer)
        self.addCleanup(shard.stop)
        stream = transport.FrameStream(shard.address, self.on_frames, self.on_broken)
        stream.send([(wire.Header(hello=wire.Hello()), [])])
        self.wait_for(lambda: self.frames)
        size = 2 << 20
        content = np.random.default_rng(1).integers(0, 256, size, np.uint8).tobytes()
        push = wire.Header(push=wire.Push())
        push.push.blocks.add(payload_bytes=size)
        for _ in range(18):
            stream.send([(push, [memoryview(content)])])
        self.wait_for(lambda: len(self.frames) == 19)
        self.assertTrue(all(payload == content for payload in received))
        kinds = [payload.obj.__class__.__name__ for payload in received]
        self.assertEqual(kinds, [kinds[0]] * 16 + ['bytes'] * 2)
        stream.close()
        received.clear()
        shard.take = None


if __name__ == '__main__':
    unittest_main.main()
