"""`bazel run //bench:modes`: a job in each mode, with the real programs."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from tools import unittest_main

try:
    import matplotlib
except ImportError:
    matplotlib = None

PROGRAMS = os.path.abspath('.')
PATIENCE_S = 240

MANIFEST = {
    'apiVersion': 'sluice.dev/v1alpha1',
    'kind': 'TrainingJob',
    'metadata': {'name': 'modes'},
    'spec': {
        'model': {'name': 'mlp', 'dimensions': {'hidden': 16}},
        'data': {
            'format': 'Synthetic',
            'synthetic': {'samples': 512, 'shape': [8], 'classes': 4},
            'evaluation': {'intervalSteps': 8},
        },
        'optimizer': {'name': 'SGD', 'learningRate': 0.1},
        'training': {'steps': 1000, 'globalBatchSize': 32, 'threads': 1},
        # Slow enough that evaluations finish during training.
        'debug': {'stepDelaySeconds': 0.03},
        'worker': {'replicas': 2},
    },
}


class BenchModes(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ['TEST_TMPDIR']))

    def bench(self, manifest, *flags):
        path = self.directory / 'job.yaml'
        path.write_text(json.dumps(manifest))
        command = [sys.executable, os.path.join(PROGRAMS, 'bench', 'modes.py'), str(path), '--bin-dir', PROGRAMS, *flags]
        return subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=PATIENCE_S)

    def test_each_mode_trains_on_same_samples_and_is_reported_and_drawn(self):
        plot = self.directory / 'modes.svg'
        done = self.bench(MANIFEST, '--samples', '1024', '--output', 'json', '--plot', str(plot))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

        found = json.loads(done.stdout)
        modes = {mode['mode']: mode for mode in found['modes']}
        self.assertEqual(list(modes), ['Synchronous', 'BoundedStaleness', 'Asynchronous'])
        self.assertEqual({mode['samples'] for mode in modes.values()}, {1024})
        self.assertEqual([mode['steps'] for mode in modes.values()], [32, 64, 64])
        self.assertNotIn('staleness', modes['Synchronous'])
        self.assertLessEqual(modes['BoundedStaleness']['staleness']['largest'], 2 * 4 + 1)
        for mode in modes.values():
            self.assertGreater(mode['samplesPerSecond'], 0)
            self.assertIsNotNone(mode['secondsToTarget'])  # the worst final value, which all reach
            self.assertGreater(len(mode['evaluations']), 1)

        self.assertEqual('matplotlib is not installed' in done.stderr, matplotlib is None)
        left = ['job.yaml'] if matplotlib is None else ['job.yaml', 'modes.svg']
        self.assertEqual(sorted(path.name for path in self.directory.iterdir()), left)

    def test_job_that_cannot_run_is_refused_with_reason(self):
        manifest = json.loads(json.dumps(MANIFEST))
        manifest['spec']['data'] = {'format': 'CSV', 'source': {'path': '/nowhere.csv'}, 'csv': {'labelColumn': 'y'}}
        done = self.bench(manifest)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('/nowhere.csv', done.stderr)
        self.assertEqual(done.stdout, '')


if __name__ == '__main__':
    unittest_main.main()
