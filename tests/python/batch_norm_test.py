"""Jobs with `sync: BatchNorm`: their tensors are those of one process, whatever happens to their workers."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf', 'torch')

import os
import pathlib
import tempfile
import unittest

import numpy as np
import torch

import sluice
from tests.python import batch_norm_worker
from tests.python import job_processes
from tests.python import sequence
from tools import unittest_main


def setUpModule():
    torch.set_num_threads(1)


def make_job(workers, **training):
    return job_processes.base_job(
        model={'type': 'Custom'}, debug={'stepDelaySeconds': 0.2}, worker={'replicas': workers}, parameterServer={'replicas': 2},
        training={'steps': batch_norm_worker.STEPS, 'globalBatchSize': batch_norm_worker.BATCH,
                  'microbatchSize': batch_norm_worker.MICROBATCH, 'sync': 'BatchNorm', **training})


def train_plainly(target, loss):
    """The state_dict of one process, with the job's order: an epoch's last step has 8 samples."""
    module = batch_norm_worker.make()
    x = batch_norm_worker.make_data()[0]
    order = sequence.SampleOrder(len(x), 1)
    plan = sequence.StepSchedule(len(x), batch_norm_worker.BATCH, batch_norm_worker.MICROBATCH)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for step in range(batch_norm_worker.STEPS):
        rows = order.indices_of(*plan.positions_of_step(step))
        optimizer.zero_grad()
        loss(module(x[rows]), target[rows]).backward()
        optimizer.step()
    return {name: value.numpy() for name, value in module.state_dict().items()}


class BatchNorm(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.loss = torch.nn.CrossEntropyLoss()
        cls.expected = train_plainly(batch_norm_worker.make_data()[1], cls.loss)

    def run_job(self, workers, mode='loss', die=None, **training):
        """(the final tensors, the logs)"""
        directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
        orders = directory / 'orders'
        orders.mkdir()
        if die is not None:
            (orders / f'die-{die}').touch()
        with job_processes.JobProcesses(make_job(workers, **training), directory) as processes:
            processes.start()
            for index in range(workers):
                processes.start_python_worker(index, batch_norm_worker.__file__, mode, str(orders))
            processes.wait_until(lambda: len(list(orders.glob('ready-*'))) == workers, 200, 'all workers are ready')
            (orders / 'go').touch()
            processes.wait_for_members(workers)
            self.assertLess(processes.progress().step, 5, 'they hardly met')
            if die is not None:
                processes.wait_until(lambda: not list(orders.glob('die-*')), 100, 'worker 1 dies')
                processes.kill('worker-1')  # and reports its death; the others continue
            codes = {name: processes.wait_for_exit(name, 200) for name in processes.workers()}
            logs = '\n'.join(processes.log(name) for name in codes)
            if any(codes.values()):
                return None, logs
            return sluice.load(processes.checkpoints), logs

    def check(self, found, expected=None):
        tensors, logs = found
        self.assertIsNotNone(tensors, logs)
        expected = expected or self.expected
        self.assertEqual(set(tensors), set(expected))
        for name, value in expected.items():
            np.testing.assert_allclose(tensors[name], value, rtol=0, atol=1e-5, err_msg=name)

    def test_one_two_and_three_workers_train_as_one_process(self):
        for workers in (1, 2, 3):
            with self.subTest(workers=workers):
                self.check(self.run_job(workers))

    def test_a_loop_of_the_programs_own_trains_as_one_process(self):
        self.check(self.run_job(2, 'loop'))

    def test_without_sync_the_statistics_are_those_of_each_worker(self):
        tensors, logs = self.run_job(2, sync='None')
        self.assertIsNotNone(tensors, logs)
        self.assertGreater(np.abs(tensors['norm.running_var'] - self.expected['norm.running_var']).max(), 1e-4)

    def test_a_worker_that_dies_between_two_exchanges_changes_nothing(self):
        for where, mode in (('forward', 'loss'), ('backward', 'loss'), ('forward', 'loop')):
            with self.subTest(where=where, mode=mode):
                self.check(self.run_job(3, mode, die=where))

    def test_a_worker_whose_samples_weigh_nothing_takes_part(self):
        target = batch_norm_worker.make_data()[2]
        self.check(self.run_job(3, 'last'), train_plainly(target, self.loss))

    def test_workers_that_need_different_sums_fail_the_job(self):
        tensors, logs = self.run_job(2, 'branch')
        self.assertIsNone(tensors)
        self.assertRegex(logs, r"`sync: BatchNorm`: in step \d+ worker \d needs .*"
                               r"every worker must run the same batch norms in the same order")


if __name__ == '__main__':
    unittest_main.main()
