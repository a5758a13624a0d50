"""Python processes and real shards that share memory: the same bits, and nothing left behind."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf')

import contextlib
import gc
import json
import os
import signal
import tempfile
import unittest

import numpy as np

import sluice
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
        for codecs in ({}, {'push': 'Float16', 'pull': 'BFloat16'}, {'push': 'Int8'}):
            hashes = []
            for wanted in (True, False):
                processes = self.start(training={'compression': codecs})
                mappings = []
                train(sluice.join(processes.address, shared_memory=wanted),
                      lambda step: mappings.append(in_use()[1]))
                hashes.append(self.state_hashes(processes))
                self.assertEqual(max(mappings), 2 if wanted else 0, codecs)  # one for each shard
            self.assertEqual(*hashes)
        self.wait_until_nothing_is_left()

    def test_a_reader_reads_the_same_with_and_without_shared_memory(self):
        processes = self.start(steps=100000)
        processes.start_python_worker(0, '-c', _PROGRAM)
        processes.wait_for_step(3)
        for wanted in (True, False):
            tensors = sluice.connect(processes.address, shared_memory=wanted).tensors()
            total = np.zeros(_ELEMENTS, np.float32)
            for step in range(tensors.version):
                total -= np.float32(0.1) * np.random.default_rng(step).standard_normal(
                    _ELEMENTS).astype(np.float32)
            np.testing.assert_allclose(tensors['w'], total, atol=1e-4)
        self.wait_until_nothing_is_left()

    def test_a_killed_shard_leaves_nothing_behind_and_its_successor_shares_memory(self):
        processes = self.start(steps=60, checkpoint={'intervalSteps': 5})
        seen = {}

        def on_step(step):
            if step == 20 and 'killed' not in seen:
                seen['before'] = in_use()
                processes.kill('ps-1')
                processes._spawn('ps-1', [job_processes.program('ps'), *processes._flags(1)])
                seen['killed'] = True
            elif step == 40 and 'after' not in seen:
                seen['after'] = in_use()

        train(sluice.join(processes.address), on_step)
        self.state_hashes(processes)
        # One for each stream.
        self.assertEqual(seen['before'][1], 2)
        self.assertEqual(seen['after'], seen['before'])
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
        processes = self.start(steps=100000, worker={'replicas': 2}, timeouts={'heartbeatTimeoutSeconds': 1})
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


if __name__ == '__main__':
    unittest_main.main()
