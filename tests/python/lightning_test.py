"""A LightningModule is trained by two workers, one of which is killed: as one loop in plain PyTorch, and Lightning's callbacks and
loggers see it."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf', 'torch', 'lightning')

import json
import os
import pathlib
import tempfile
import unittest

import torch

import sluice
from tests.python import job_processes
from tests.python import lightning_program as program
from tools import unittest_main

_STEPS = program.SAMPLES // program.BATCH * program.EPOCHS


def job(**optimizer):
    return job_processes.base_job(
        model={'type': 'Custom'}, data={'format': 'Custom', 'shuffle': False, 'evaluation': {'intervalSteps': 10}},
        optimizer={'name': 'AdamW', 'learningRate': 0.01, 'weightDecay': 0.01, 'betas': [0.9, 0.999], 'eps': 1e-8, **optimizer},
        training={'epochs': program.EPOCHS, 'globalBatchSize': program.BATCH, 'microbatchSize': 8},
        parameterServer={'replicas': 2}, worker={'replicas': 2}, debug={'stepDelaySeconds': 0.15})


class Lightning(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))

    def start(self, processes, index):
        processes.start_python_worker(index, 'tests/python/lightning_program.py', str(self.directory), '--kill')

    def test_a_module_trains_as_in_one_loop_though_a_worker_is_killed(self):
        with job_processes.JobProcesses(job(), self.directory / 'job') as processes:
            processes.start()
            for index in (0, 1):
                self.start(processes, index)
            processes.wait_until(lambda: processes.progress().step >= 7, 300, 'the job trains')
            processes.kill('worker-1')
            self.start(processes, 1)
            for name in ('worker-0', 'worker-1'):
                self.assertEqual(processes.wait_for_exit(name, 200), 0, processes.log(name))
            trained = sluice.load(processes.checkpoints, torch=True)

        net = program.Net()
        optimizer = net.configure_optimizers()
        x, y = program.data()
        for _ in range(program.EPOCHS):
            for begin in range(0, len(x), program.BATCH):
                optimizer.zero_grad()
                net.loss((x[begin:begin + program.BATCH], y[begin:begin + program.BATCH])).backward()
                optimizer.step()
        for name, expected in net.state_dict().items():
            torch.testing.assert_close(trained[name], expected, atol=1e-5, rtol=1e-5)

        seen = json.loads((self.directory / 'seen-0.json').read_text())
        calls = seen['calls']
        self.assertEqual((seen['step'], seen['epoch']), (_STEPS, program.EPOCHS))
        first = min(seen['steps'])  # the other worker may have begun alone
        self.assertEqual(seen['steps'], sorted(seen['steps']))
        self.assertEqual(set(seen['steps']), set(range(first, _STEPS)))
        self.assertLessEqual(first, program.HOLD)
        epochs = program.EPOCHS - first // (program.SAMPLES // program.BATCH)
        self.assertEqual((calls['on_train_epoch_end'], calls['on_train_start'], calls['on_train_end']), (epochs, 1, 1))
        self.assertGreaterEqual(len(seen['validations']), 2)
        self.assertLess(seen['validations'][-1][1], seen['validations'][0][1])
        self.assertTrue(pathlib.Path(seen['best']).exists())
        self.assertFalse(list(self.directory.glob('logs-1/**/metrics.csv')), 'only the first worker logs')
        (metrics,) = self.directory.glob('logs-0/**/metrics.csv')
        header, *rows = [line.split(',') for line in metrics.read_text().splitlines()]
        self.assertEqual(set(header), {'epoch', 'step', 'train_loss', 'val_loss'})
        logged = {int(row[header.index('step')]) for row in rows if row[header.index('train_loss')]}
        self.assertEqual(logged, set(range(first, _STEPS)))

    def test_another_optimizer_than_the_manifests_is_refused_with_its_lines(self):
        with job_processes.JobProcesses(job(learningRate=0.1), self.directory / 'job') as processes:
            processes.start()
            self.start(processes, 0)
            self.assertNotEqual(processes.wait_for_exit('worker-0', 300), 0)
            text = processes.log('worker-0')
        self.assertIn("configure_optimizers gives another optimizer than the manifest", text)
        self.assertIn("lr of 'net.0.weight' is 0.01, and 0.1 in the manifest", text)
        self.assertIn('  optimizer:\n    name: AdamW\n    learningRate: 0.01\n    weightDecay: 0.01\n    betas: [0.9, 0.999]', text)


if __name__ == '__main__':
    unittest_main.main()
