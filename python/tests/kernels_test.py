"""The kernels of a Python worker: which are accepted, and what the worker reports of them."""

import os
import subprocess
import sys
import unittest
from unittest import mock

from python.testing import requirements
requirements.need('numpy', 'google.protobuf')

from sluice import kernels
from sluice import wire
from tools import unittest_main

_CHECK = '''
import sys
import {imports}
from sluice import errors, kernels, wire
spec = wire.JobSpec(training=wire.TrainingSpec(bit_exact=True))
try:
    kernels.check(spec)
except errors.UsageError as error:
    print(error)
print(kernels.environment(spec, 'torch' in sys.modules))
'''


def spec(**training):
    return wire.JobSpec(training=wire.TrainingSpec(**training))


class Level(unittest.TestCase):

    def test_only_a_bit_exact_job_fixes_kernels_by_default(self):
        self.assertEqual(kernels.level(spec(bit_exact=True)), 'x86-64-v3')
        self.assertEqual(kernels.level(spec()), '')
        self.assertEqual(kernels.level(spec(bit_exact=True, kernels='NATIVE')), '')
        self.assertEqual(kernels.level(spec(kernels='X86_64_V4')), 'x86-64-v4')
        self.assertEqual(kernels.variables(spec()), {})


class Check(unittest.TestCase):

    def run_python(self, imports='numpy', **environment):
        inherited = {name: value for name, value in os.environ.items()
                     if name not in kernels.variables(spec(bit_exact=True))}
        done = subprocess.run([sys.executable, '-c', _CHECK.format(imports=imports)], text=True,
                              capture_output=True, check=False,
                              env={**inherited, 'PYTHONPATH': os.pathsep.join(sys.path), **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def setUp(self):
        if not set(kernels._INSTRUCTIONS['x86-64-v3']) <= kernels._instructions():
            self.skipTest('this processor has no AVX2')

    def test_a_process_with_other_kernels_is_refused_with_the_variables_to_set(self):
        text = self.run_python(OPENBLAS_CORETYPE='Nehalem')
        if 'OpenBLAS' not in text:
            self.skipTest("numpy's BLAS is not OpenBLAS")
        self.assertIn('fixes the kernels of its workers at x86-64-v3', text)
        self.assertIn('OpenBLAS with kernels for Nehalem', text)
        self.assertIn('OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2', text)
        self.assertIn('training.kernels: Native', text)

    def test_a_process_with_the_variables_is_accepted_and_says_what_it_computes_with(self):
        text = self.run_python(**kernels.variables(spec(bit_exact=True)))
        self.assertNotIn('fixes', text)
        self.assertIn("'kernels': 'x86-64-v3'", text)
        self.assertIn('NumPy ', text)

    def test_the_version_of_libtorch_is_that_of_cpp_programs(self):
        for version, expected in (('1.13.0a0', '1.13.0'), ('2.15.0+cpu', '2.15.0'), ('2.9.0a0+git5dcab4e', '2.9.0'),
                                  ('2.9.0.dev20250901+cu129', '2.9.0.dev20250901')):
            self.assertEqual(kernels.libtorch(version), expected)

    def test_torch_with_other_kernels_is_refused(self):
        try:
            import torch
        except ImportError:
            self.skipTest('torch is not installed')
        variables = kernels.variables(spec(bit_exact=True))
        accepted = self.run_python('torch', **variables)
        self.assertNotIn('fixes', accepted)
        self.assertIn(f'PyTorch {kernels.libtorch(torch.__version__)}', accepted)
        other = {**variables, 'ATEN_CPU_CAPABILITY': 'default', 'MKL_CBWR': 'COMPATIBLE'}
        refused = self.run_python('torch', **other)
        self.assertIn('PyTorch with ', refused)
        if torch.backends.mkl.is_available():
            self.assertIn('MKL_CBWR is COMPATIBLE', refused)

    def test_one_dnn_is_not_used_where_kernels_are_fixed(self):
        try:
            import torch
        except ImportError:
            self.skipTest('torch is not installed')
        self.addCleanup(setattr, torch.backends.mkldnn, 'enabled', torch.backends.mkldnn.enabled)
        before = torch.backends.mkldnn.enabled
        kernels.fix_torch(spec())
        self.assertEqual(torch.backends.mkldnn.enabled, before)
        kernels.fix_torch(spec(bit_exact=True))
        self.assertFalse(torch.backends.mkldnn.enabled)

    def test_libraries_that_are_loaded_later_find_the_variables(self):
        variables = kernels.variables(spec(bit_exact=True))
        with mock.patch.dict(os.environ), mock.patch.dict(sys.modules), \
                mock.patch.object(kernels, '_wrong_numpy', return_value=[]):
            sys.modules.pop('torch', None)
            os.environ.pop('ATEN_CPU_CAPABILITY', None)
            kernels.check(spec(bit_exact=True))
            self.assertEqual(os.environ['ATEN_CPU_CAPABILITY'], variables['ATEN_CPU_CAPABILITY'])

    def test_a_processor_without_the_instructions_is_refused(self):
        with mock.patch.object(kernels, '_instructions', return_value={'avx2', 'fma', 'bmi1'}):
            with self.assertRaisesRegex(Exception, 'has no bmi2: .*training.kernels: Native'):
                kernels.check(spec(bit_exact=True))
            with self.assertRaisesRegex(Exception, 'avx512f.*x86-64-v3 or Native'):
                kernels.check(spec(kernels='X86_64_V4'))


if __name__ == '__main__':
    unittest_main.main()
