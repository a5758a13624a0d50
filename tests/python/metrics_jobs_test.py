"""Jobs with metrics of their own, whose workers are killed while they evaluate and compute."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf')

import json
import os
import pathlib
import re
import tempfile
import unittest

import numpy as np

import sluice
from tests.python import job_processes
from tests.python import metrics_worker
from tools import unittest_main


class Metrics(unittest.TestCase):

    def start(self, workers, target=None, delay=0.0):
        self.files = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
        training = {'steps': 30, 'determinism': 'BitExact', **({'target': target} if target else {})}
        job = job_processes.base_job(
            model={'type': 'Custom'}, worker={'replicas': workers}, training=training,
            debug={'stepDelaySeconds': delay},
            data={'evaluation': {'intervalSteps': 10, 'maxSamples': metrics_worker.FIRST}})
        processes = job_processes.JobProcesses(job, self.files / 'job')
        self.addCleanup(processes.__exit__)
        return processes.start()

    def start_worker(self, processes, index):
        processes.start_python_worker(index, metrics_worker.__file__, str(self.files), str(index))

    def kill_the_one_that_holds(self, processes, where):
        """Kills one of the workers that wait at this place, and starts it again."""
        names = processes.wait_until(lambda: sorted(self.files.glob(f'{where}-*')), 60, f'a worker holds in {where}')
        index = int(names[0].name.rpartition('-')[2])
        processes.kill(f'worker-{index}')
        (self.files / f'hold-{where}').unlink()
        self.start_worker(processes, index)

    def finish(self, processes, workers):
        for index in range(workers):
            self.assertEqual(processes.wait_for_exit(f'worker-{index}', 100), 0, processes.log(f'worker-{index}'))
        self.assertEqual(processes.wait_for_exit('coordinator'), 0)
        return (self.files / 'values').read_text().split()

    def test_values_have_the_same_bits_whichever_workers_evaluate_and_die(self):
        processes = self.start(1)
        self.start_worker(processes, 0)
        alone = self.finish(processes, 1)
        # A correlation and a mean at 10, 20 and 30, and at the end over all samples.
        self.assertEqual(len(alone), 8)

        outputs, targets = self.trained(processes)
        self.assertAlmostEqual(float.fromhex(alone[6]), np.corrcoef(outputs, targets)[0, 1], places=12)
        first = metrics_worker.FIRST
        self.assertAlmostEqual(float.fromhex(alone[4]), np.corrcoef(outputs[:first], targets[:first])[0, 1],
                               places=12)

        processes = self.start(2, delay=0.1)
        for where in ('train', 'update', 'compute'):
            (self.files / f'hold-{where}').touch()
        for index in range(2):
            self.start_worker(processes, index)
        processes.wait_for_members(2)
        (self.files / 'hold-train').unlink()
        self.kill_the_one_that_holds(processes, 'update')
        self.kill_the_one_that_holds(processes, 'compute')
        self.assertEqual(self.finish(processes, 2), alone)

    def trained(self, processes):
        """(outputs, targets) of the trained model over the held-out samples."""
        parameters = sluice.load(processes.newest_checkpoint())
        result = metrics_worker.loss_fn(parameters, metrics_worker.make_held_out())
        return result['outputs'], result['targets']

    def test_progress_has_the_values_over_all_workers(self):
        processes = self.start(2)
        (self.files / 'hold-train').touch()
        for index in range(2):
            self.start_worker(processes, index)
        processes.wait_for_members(2)
        (self.files / 'hold-train').unlink()
        (self.files / 'hold-compute').touch()
        processes.wait_until(lambda: list(self.files.glob('compute-*')), 60, 'metrics are computed')
        self.assertEqual(processes.progress().last_evaluation.step, 0, 'without the values it is not complete')
        (self.files / 'hold-train').touch()
        (self.files / 'hold-compute').unlink()
        processes.wait_until(lambda: processes.progress().last_evaluation.step >= 10, 60, 'an evaluation')
        evaluation = processes.progress().last_evaluation
        values = {metric.name: metric.value for metric in evaluation.metrics}
        self.assertEqual(sorted(values), ['correlation', 'largest', 'mse', 'nothing'])
        self.assertAlmostEqual(values['mse'], evaluation.loss, places=9)
        self.assertTrue(np.isnan(values['nothing']))
        high, largest = divmod(values['largest'], 1000)
        self.assertTrue(0 < high < metrics_worker.FIRST and largest > 0)
        (self.files / 'hold-train').unlink()
        self.finish(processes, 2)

    def test_a_target_that_the_program_lacks_fails_the_job_and_names_those_that_it_has(self):
        processes = self.start(1, {'metric': 'auc', 'goal': 'AtLeast', 'value': 0.5})
        self.start_worker(processes, 0)
        self.assertNotEqual(processes.wait_for_exit('coordinator'), 0)
        self.assertRegex(processes.log('coordinator'),
                         r'training.target.metric is auc, .* they have loss, accuracy, perplexity, correlation, '
                         r'largest, mse, nothing')


class Decisions(unittest.TestCase):
    """A plateau and an early stop, of the same held-out samples."""

    def train(self, delay=0.0, disturb=lambda processes, start_worker: None):
        """(the end, the checkpoint's decisions, the final tensors)"""
        files = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
        job = job_processes.base_job(
            model={'type': 'Custom'}, worker={'replicas': 2}, debug={'stepDelaySeconds': delay},
            # No checkpoint of the interval is at the end, where it may be older than the end's decision.
            training={'steps': 600, 'determinism': 'BitExact', 'stopping': {'metric': 'loss', 'patience': 5, 'minDelta': 1e-3}},
            optimizer={'plateau': {'metric': 'loss', 'factor': 0.5, 'patience': 1, 'threshold': 0.01}}, checkpoint={'intervalSteps': 9},
            data={'evaluation': {'intervalSteps': 4}})

        def start_worker(index):
            processes.start_python_worker(index, metrics_worker.__file__, str(files), str(index))

        with job_processes.JobProcesses(job, files / 'job') as processes:
            processes.start()
            for index in range(2):
                start_worker(index)
            disturb(processes, start_worker)
            for index in range(2):
                self.assertEqual(processes.wait_for_exit(f'worker-{index}', 100), 0, processes.log(f'worker-{index}'))
            self.assertEqual(processes.wait_for_exit('coordinator'), 0)
            decisions = json.loads((processes.newest_checkpoint() / 'manifest.json').read_text())['decisions']
            return processes.outcome()['reason'], decisions, sluice.load(processes.checkpoints)

    def test_they_repeat_to_the_bit_after_kills_of_workers_and_shards(self):
        reason, decisions, tensors = self.train()
        self.assertRegex(reason, r'stopped at step \d+: loss has not improved')
        self.assertLess(decisions['learning_rate_factor'], 0.3, 'it was reduced twice')
        step = int(re.search(r'\d+', reason)[0])

        def disturb(processes, start_worker):
            processes.wait_for_step(6)
            processes.kill('worker-1')
            start_worker(1)
            processes.wait_for_step(step // 2)
            processes.kill('ps-0')
            processes.start_shard(0)
            processes.wait_for_step(step - 10)
            processes.kill('worker-0')
            start_worker(0)

        found = self.train(0.05, disturb)
        self.assertEqual(found[:2], (reason, decisions))
        for name, value in tensors.items():
            self.assertEqual(found[2][name].tobytes(), value.tobytes(), name)


if __name__ == '__main__':
    unittest_main.main()
