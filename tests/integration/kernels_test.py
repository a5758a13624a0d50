"""`training.kernels` as a user meets it: a BitExact job has the same bits whatever kernels its libraries would choose, and what
it computed with can be seen."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from tools import unittest_main

_ROOT = pathlib.Path(os.environ.get('SLUICE_TEST_PROGRAMS', os.path.abspath('.')))
_SLUICE = _ROOT / 'cli/sluice'
_PATIENCE_S = 120

_MANIFEST = """apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {name: mlp, dimensions: {hidden: 48}}
  data: {format: Synthetic, synthetic: {samples: 512, shape: [96], classes: 10}}
  optimizer: {name: Adam, learningRate: 0.01}
  training: {steps: 40, globalBatchSize: 64, microbatchSize: 16, determinism: BitExact%s}
  parameterServer: {replicas: 1, partitions: 4}
  worker: {replicas: 2}
"""

_CUSTOM = """apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {type: Custom}
  data: {format: Custom}
  optimizer: {name: SGD}
  training: {steps: 40, %s}
  worker: {replicas: 1, command: [%s, -c, "import json, os; json.dump(dict(os.environ), open('environment', 'w')); exit(1)"]}
  backoffLimit: 0
"""

# What libraries would choose: on an old processor, on one with AVX2, on one with AVX-512, and in a pod.
_OLD = {'OPENBLAS_CORETYPE': 'Nehalem', 'ATEN_CPU_CAPABILITY': 'default', 'ONEDNN_MAX_CPU_ISA': 'SSE41'}
_HASWELL = {'OPENBLAS_CORETYPE': 'Haswell', 'ATEN_CPU_CAPABILITY': 'avx2'}
_NEW = {'OPENBLAS_CORETYPE': 'SkylakeX', 'ATEN_CPU_CAPABILITY': 'avx512'}


def _instructions():
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
        if line.startswith('flags'):
            return set(line.split())
    return set()


@unittest.skipUnless('avx2' in _instructions(), 'this processor has no AVX2')
class KernelsTest(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(dir=os.environ.get('TEST_TMPDIR'))))
        self.checkpoints = self.directory / '.sluice/example/checkpoints'

    def sluice(self, *arguments, **environment):
        inherited = {name: value for name, value in os.environ.items() if name not in {**_OLD, **_NEW}}
        return subprocess.run([_SLUICE, *arguments], cwd=self.directory, capture_output=True, text=True, timeout=_PATIENCE_S,
                              check=False, env={**inherited, **environment})

    def train(self, environment, kernels=''):
        """The index of the last checkpoint, and the state hash of each partition."""
        (self.directory / 'job.yaml').write_text(_MANIFEST % kernels)
        done = self.sluice('run', 'job.yaml', '--quiet', '--fresh', '--yes', **environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        index = json.loads(max(self.checkpoints.glob('attempt-*/manifest.json')).read_text())
        return index, {int(file.get('partition', 0)): file['state_hash'] for file in index['files']}

    def test_bit_exact_job_has_the_same_bits_whatever_the_environment_chooses(self):
        choices = [{}, _OLD, _HASWELL] + ([_NEW] if 'avx512vl' in _instructions() else [])
        results = [self.train(environment) for environment in choices]
        for index, hashes in results[1:]:
            self.assertEqual(hashes, results[0][1])
            self.assertEqual(index['environment'], results[0][0]['environment'])
        self.assertEqual(results[0][0]['environment']['kernels'], 'x86-64-v3')
        self.assertEqual(results[0][0]['environment']['threads'], 1)
        self.assertIn('x86-64-v3', results[0][0]['isa'])
        self.assertIn('workers     kernels x86-64-v3; LibTorch ', self.sluice('inspect', 'example').stdout)

    def test_with_native_kernels_the_bits_differ_and_verify_names_the_reason(self):
        _, haswell = self.train(_HASWELL, ', kernels: Native')
        index, old = self.train(_OLD, ', kernels: Native')
        if 'OpenBLAS' not in index['environment']['kernels']:
            self.skipTest('the BLAS of LibTorch is not OpenBLAS')
        self.assertEqual(index['environment']['kernels'].split(',')[0], 'OpenBLAS Nehalem')
        self.assertNotEqual(haswell, old)

        done = self.sluice('verify', 'example', '--from', '0', '--output', 'json', **_HASWELL)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        interval = json.loads(done.stdout.splitlines()[-1])['intervals'][0]
        self.assertIn('OpenBLAS Nehalem', interval['environments'])
        self.assertIn('OpenBLAS Haswell', interval['environments'])
        self.assertIn('bits may differ for that reason', self.sluice('verify', 'example', '--from', '0', **_HASWELL).stdout)
        self.assertEqual(self.sluice('verify', 'example', '--from', '0', **_OLD).returncode, 0)

    def environment_of_command(self, training):
        (self.directory / 'job.yaml').write_text(_CUSTOM % (training, sys.executable))
        done = self.sluice('run', 'job.yaml', '--quiet', '--fresh', '--yes', **_OLD)
        self.assertNotEqual(done.returncode, 0)
        return json.loads((self.directory / 'environment').read_text())

    def test_worker_command_is_told_the_kernels_that_the_job_fixes(self):
        fixed = self.environment_of_command('determinism: BitExact')
        for name, value in {**_HASWELL, 'MKL_CBWR': 'AVX2,STRICT', 'OMP_NUM_THREADS': '1'}.items():
            self.assertEqual(fixed.get(name), value, name)

        native = self.environment_of_command('determinism: BitExact, kernels: Native')
        self.assertEqual(native['OPENBLAS_CORETYPE'], 'Nehalem')
        self.assertNotIn('MKL_CBWR', native)


if __name__ == '__main__':
    unittest_main.main()
