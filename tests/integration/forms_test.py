"""Training forms of well-known parameter servers, run as a user does: `sluice run` and the real programs."""

import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import unittest

from tools import unittest_main

PROGRAMS = os.path.abspath('.')
SLUICE = os.path.join(PROGRAMS, 'cli', 'sluice')
PATIENCE_S = 120


def additive(name, steps, training=None, **spec):
    """A job that learns nothing: each update adds 1e-3 w + 1 to w, which begins as zeros."""
    manifest = {
        'apiVersion': 'sluice.dev/v1alpha1',
        'kind': 'TrainingJob',
        'metadata': {'name': name},
        'spec': {
            'model': {'name': 'additive', 'dimensions': {'dim': 5, 'ramp': 1}, 'dtype': 'float64'},
            'data': {'format': 'Synthetic'},
            'optimizer': {'name': 'Add'},
            'training': {'steps': steps, 'threads': 1, **(training or {})},
        },
    }
    manifest['spec'].update(spec)
    return manifest


class Forms(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ['TEST_TMPDIR']))
        self.state = self.directory / 'state'

    def command(self, *arguments):
        return [SLUICE, *map(str, arguments), '--state-dir', str(self.state)]

    def run_arguments(self, manifest, output):
        path = self.directory / 'job.yaml'
        path.write_text(json.dumps(manifest))
        return self.command('run', path, '--output', output, '--bin-dir', PROGRAMS)

    def train(self, manifest, output='json'):
        done = subprocess.run(self.run_arguments(manifest, output), cwd=self.directory, capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        return done.stdout

    def trained(self, name, tensor='w'):
        path = self.directory / 'model.safetensors'
        subprocess.run(self.command('export', name, '-o', path), check=True, capture_output=True)
        data = path.read_bytes()
        (length,) = struct.unpack('<Q', data[:8])
        info = json.loads(data[8:8 + length])[tensor]
        self.assertEqual(info['dtype'], 'F64')
        begin, end = info['data_offsets']
        return struct.unpack(f'<{(end - begin) // 8}d', data[8 + length + begin:8 + length + end])

    def test_pool_computes_all_updates_of_an_iteration_from_one_snapshot(self):
        workers, iterations = 25, 5
        expected = 0.0
        for _ in range(iterations):
            expected += workers * (1e-3 * expected + 1)
        # On a busy machine a worker may start after the others have begun. It joins between two iterations, and more are needed.
        for attempt in range(3):
            output = self.train(additive(f'pool-{attempt}', workers * iterations, {
                'mode': 'BoundedStaleness', 'boundedStaleness': {'maxStaleness': 0}, 'globalBatchSize': 1,
            }, worker={'replicas': workers}, parameterServer={'replicas': 1}))
            values = self.trained(f'pool-{attempt}')
            if f'begins at step 0 with {workers} workers' in output:
                break
        for value in values:
            self.assertAlmostEqual(value, expected, delta=1e-9)

    def reported_iterations(self, name, every, training, workers):
        """The iterations of which a job that evaluates every `every` steps prints the accuracy."""
        manifest = additive(name, 0, training, worker={'replicas': workers}, parameterServer={'replicas': 2})
        manifest['spec'].update({
            'model': {'name': 'mlp', 'dimensions': {'hidden': 4}},
            'data': {'format': 'Synthetic', 'synthetic': {'samples': 400, 'shape': [4], 'classes': 3}, 'evaluation': {'intervalSteps': every}},
            'optimizer': {'name': 'SGD', 'learningRate': 0.1},
        })
        return [int(number) for number in re.findall(r'^Iter (\d+): accuracy is ', self.train(manifest, 'plain'), re.MULTILINE)]

    def test_evaluates_exactly_the_requested_iterations(self):
        iterations = self.reported_iterations('each', 1, {'globalBatchSize': 8, 'steps': 12}, workers=2)
        self.assertEqual(iterations, list(range(1, 13)))
        iterations = self.reported_iterations('tenth', 10, {'globalBatchSize': 8, 'steps': 60}, workers=2)
        self.assertEqual(iterations, list(range(10, 61, 10)))
        together = {'mode': 'BoundedStaleness', 'boundedStaleness': {'maxStaleness': 0}, 'globalBatchSize': 8, 'steps': 20}
        iterations = self.reported_iterations('together', 4, together, workers=4)
        self.assertEqual(iterations, [1, 2, 3, 4, 5])

    def sharded(self, shards, steps, training, workers):
        """Smallest and largest element of a vector that has blocks on every shard."""
        name = f'sharded-{shards}'
        spec = {'model': {'name': 'additive', 'dimensions': {'dim': 600000, 'ramp': 1}, 'dtype': 'float64'}}  # 19 blocks of 256 KiB
        self.train(additive(name, steps, training, worker={'replicas': workers}, parameterServer={'replicas': shards}, **spec))
        values = self.trained(name)
        self.assertEqual(len(values), 600000)
        shutil.rmtree(self.state)
        return min(values), max(values)

    def test_synchronous_sum_is_the_known_one_for_any_number_of_shards(self):
        expected = 0.0
        for _ in range(10):
            expected += 4 * (1e-3 * expected + 1)
        for shards in (1, 2, 4):
            for value in self.sharded(shards, 10, {'globalBatchSize': 4, 'microbatchSize': 1, 'aggregation': 'Sum'}, workers=2):
                self.assertAlmostEqual(value, expected, delta=1e-9)

    def test_one_command_switches_mode_of_running_job(self):
        steps = 120
        before = additive('switched', steps, {'globalBatchSize': 2, 'stepDelaySeconds': 0.5}, worker={'replicas': 1})
        with subprocess.Popen(self.run_arguments(before, 'json'), cwd=self.directory, stdout=subprocess.PIPE, text=True) as first:
            try:
                for text in first.stdout:
                    line = json.loads(text)
                    if line['type'] == 'progress' and line.get('step', 0) >= 5:
                        break
                after = additive('switched', steps, {'globalBatchSize': 2, 'mode': 'Asynchronous'}, worker={'replicas': 1})
                refused = subprocess.run(self.run_arguments(after, 'json'), cwd=self.directory, capture_output=True, text=True)
                self.assertEqual(refused.returncode, 2)
                self.assertIn('--take-over', refused.stderr)
                fixed = json.loads(json.dumps(after))
                fixed['spec']['training']['seed'] = 5
                refused = subprocess.run(self.run_arguments(fixed, 'json') + ['--take-over'], cwd=self.directory, capture_output=True, text=True)
                self.assertEqual(refused.returncode, 2)
                self.assertIn('spec.training.seed', refused.stderr)
                self.assertIsNone(first.poll(), 'the job must not be stopped for a manifest with which it cannot continue')
                done = subprocess.run(self.run_arguments(after, 'json') + ['--take-over'], cwd=self.directory, capture_output=True, text=True,
                                      timeout=PATIENCE_S)
                first.stdout.read()
            finally:
                first.kill()

        self.assertEqual(first.returncode, 130)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        notes = [line['message'] for line in lines if line['type'] == 'note']
        self.assertIn('Changed: spec.training.mode "Synchronous" -> "Asynchronous"', notes)
        self.assertGreaterEqual(max(line.get('restoredFromStep', 0) for line in lines), 5)

        expected = 0.0
        for _ in range(steps):  # one update per step, in either mode
            expected += 1e-3 * expected + 1
        for value in self.trained('switched'):
            self.assertAlmostEqual(value, expected, delta=1e-9)

    # ---- limits on waiting

    def frozen(self, process, timeouts):
        """Messages and summary of a job; `process` is frozen while the job trains."""
        manifest = additive('frozen', 240, {'globalBatchSize': 2, 'microbatchSize': 1, 'stepDelaySeconds': 0.05},
                            worker={'replicas': 2}, parameterServer={'replicas': 1}, checkpoint={'intervalSteps': 5},
                            timeouts={'heartbeatSeconds': 0.5, 'heartbeatTimeoutSeconds': 100, **timeouts})
        lines, stopped = [], False
        with subprocess.Popen(self.run_arguments(manifest, 'json'), cwd=self.directory, stdout=subprocess.PIPE, text=True) as job:
            watchdog = threading.Timer(PATIENCE_S, job.kill)  # a job that hangs prints nothing
            watchdog.start()
            try:
                for text in job.stdout:
                    line = json.loads(text)
                    lines.append(line)
                    if not stopped and line['type'] == 'progress' and line.get('step', 0) >= 7:
                        pid = next(l['pid'] for l in lines if l['type'] == 'process' and l['name'] == process)
                        os.kill(pid, signal.SIGSTOP)
                        stopped = True
            finally:
                watchdog.cancel()
                job.kill()

        self.assertTrue(stopped)
        summary = lines[-1]
        self.assertEqual(summary['type'], 'summary', lines[-5:])
        self.assertEqual(summary['outcome'], 'Succeeded', lines[-5:])
        self.assertEqual(summary['step'], 240)
        return [line.get('message', '') for line in lines], summary

    def test_worker_with_overdue_gradients_is_named_and_replaced(self):
        messages, summary = self.frozen('worker-1', {'gradientsSeconds': 5})
        self.assertTrue(any(re.search(r'worker-1: has sent ps-0 no gradients of step \d+ in 5s', m) for m in messages), messages)
        self.assertGreaterEqual(summary['restarts'], 1)

    def test_shard_with_overdue_weights_is_named_and_replaced(self):
        messages, summary = self.frozen('ps-0', {'weightsSeconds': 5})
        self.assertTrue(any(re.search(r'ps-0: owes worker-\d version \d+ for 5s', m) for m in messages), messages)
        self.assertGreaterEqual(summary['restarts'], 1)


if __name__ == '__main__':
    unittest_main.main()
