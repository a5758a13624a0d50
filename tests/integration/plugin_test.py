"""An optimizer built outside the tree, against installed headers, trains a job."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from tools import unittest_main

_ROOT = pathlib.Path(os.environ.get('TEST_SRCDIR', '.')).absolute() / 'sluice'
_PATIENCE = 120

_MANIFEST = """apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {name: logistic}
  data: {format: Synthetic, synthetic: {samples: 512, shape: [6], classes: 2}}
  optimizer: {name: Plugin, library: lion, learningRate: 0.01, parameters: {%s}}
  training: {steps: 150, globalBatchSize: 32}
  parameterServer: {replicas: 2}
  worker: {replicas: 1}
  checkpoint: {intervalSteps: 50}
"""


class PluginTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.prefix = cls.directory / 'prefix'
        shutil.copytree(_ROOT / 'include/sluice', cls.prefix / 'include/sluice')
        source = cls.directory / 'lion'
        source.mkdir()
        for name in ('lion.cc', 'Makefile'):
            shutil.copy(_ROOT / 'examples/plugins/lion' / name, source)
        subprocess.run(['make', '-C', source, 'install', f'PREFIX={cls.prefix}'], check=True)

    def run_job(self, parameters, libraries):
        work = pathlib.Path(tempfile.mkdtemp(dir=self.directory))
        (work / 'job.yaml').write_text(_MANIFEST % parameters)
        return subprocess.run(
            [_ROOT / 'cli/sluice', 'run', 'job.yaml', '--output', 'json'], cwd=work, capture_output=True,
            text=True, timeout=_PATIENCE, check=False, env={**os.environ, 'SLUICE_PLUGIN_PATH': str(libraries)})

    def test_plugin_trains_job(self):
        done = self.run_job('beta1: 0.9', self.prefix / 'lib/sluice')
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        losses = [line['loss'] for line in map(json.loads, done.stdout.splitlines()) if line.get('loss') is not None]
        self.assertLess(losses[-1], 0.6)  # guessing gives 0.69

    def test_missing_plugin_fails_job_before_training_with_remedy(self):
        done = self.run_job('beta1: 0.9', self.directory / 'nothing')
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn('there is no liblion.so in', done.stdout + done.stderr)
        self.assertIn('SLUICE_PLUGIN_PATH', done.stdout + done.stderr)

    def test_unknown_parameter_fails_job_with_message_of_plugin(self):
        done = self.run_job('beta3: 0.9', self.prefix / 'lib/sluice')
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn('there is no parameter `beta3`', done.stdout + done.stderr)


if __name__ == '__main__':
    unittest_main.main()
