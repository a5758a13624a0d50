"""The wheel is for every Python, contains the licences of its libraries, is reproducible, and trains in a bare Debian 12."""

import pathlib
import re
import subprocess
import tempfile
import unittest
import zipfile

from tests.packages import bare_debian
from tests.packages import programs
from tools import unittest_main

PROGRAMS = ['sluice', 'sluice-coordinator', 'sluice-ps']
MANIFEST = b'''
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: line}
spec:
  model: {type: Custom}
  data: {format: Custom}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 200, globalBatchSize: 16}
  parameterServer: {replicas: 2}
  worker: {replicas: 2, command: [python3, worker.py]}
'''
WORKER = b'''
import numpy as np
import sluice

x = np.random.default_rng(1).normal(size=(256, 5))
y = x @ np.arange(5.0)

def loss_fn(parameters, data):
    x, y = data
    error = x @ parameters['w'] - y
    return float(error @ error) / len(y), {'w': 2 * (x.T @ error) / len(y)}

with sluice.Worker(sluice.join(), {'w': np.zeros(5)}, loss_fn) as worker:
    for batch in worker.batches(sluice.ArrayDataset(x, y)):
        worker.step(batch)
'''
TRAIN = b'''
import sluice

print(abs(sluice.run('line.yaml', display=False).load()['w'].round(3)))
'''


class Wheel(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        programs.need_auditwheel()
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.wheel = cls.build('first')

    @classmethod
    def build(cls, name):
        directory = pathlib.Path(cls.temporary.name) / name
        programs.run_script('tools/build_wheel.sh', '--output', directory, names=[*PROGRAMS, 'libsluice-worker.so'])
        (wheel,) = directory.iterdir()
        return wheel

    def test_wheel_is_for_every_python_and_names_its_platform(self):
        version = pathlib.Path('VERSION').read_text().strip()
        self.assertEqual(self.wheel.name, f'sluice_training-{version}-cp39-abi3-manylinux_2_36_x86_64.whl')

    def test_wheel_contains_the_licence_of_each_library(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = wheel.namelist()
        libraries = [name for name in names if name.startswith('sluice_training.libs/')]
        licenses = [name for name in names if re.search(r'\.dist-info/licenses/[^/]+/copyright$', name)]
        self.assertTrue(any(name.startswith('sluice_training.libs/libgrpc-') for name in libraries))
        self.assertTrue(any('/libgrpc29/' in name for name in licenses))
        self.assertGreater(len(licenses), 15)
        self.assertTrue(any(name.endswith('.dist-info/LICENSE') for name in names))

    def test_the_same_programs_give_the_same_wheel(self):
        self.assertEqual(self.build('second').read_bytes(), self.wheel.read_bytes())

    def test_wheel_trains_where_no_library_of_debian_is_installed(self):
        bare_debian.need()
        programs.need_package_index()
        with bare_debian.BareDebian('python3-venv') as debian:
            # With what the package requires; this machine's Python is of the same version as the system's.
            done = subprocess.run(['/usr/bin/python3', '-m', 'pip', 'download', '-q', '--cache-dir', bare_debian.CACHE / 'pip', '-d',
                                   debian.directory / 'changes/wheels', self.wheel], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stdout)
            debian.run('python3', '-m', 'venv', '/venv')
            debian.run('/venv/bin/pip', 'install', '-q', '--no-index', '--find-links', '/wheels', 'sluice-training')

            self.assertNotIn('libgrpc', debian.run('ldconfig', '-p'))
            version = pathlib.Path('VERSION').read_text().strip()
            for name in PROGRAMS:
                self.assertIn(version, debian.run(f'/venv/bin/{name}', '--version'))
            for name, content in {'line.yaml': MANIFEST, 'worker.py': WORKER, 'train.py': TRAIN}.items():
                debian.write(f'/job/{name}', content)
            self.assertEqual(debian.run('sh', '-c', 'cd /job && /venv/bin/python train.py'), '[0. 1. 2. 3. 4.]\n')
            # The command by itself finds the interpreter that has the package.
            self.assertIn('Trained line', debian.run('sh', '-c', 'cd /job && /venv/bin/sluice run line.yaml --fresh --yes'))


if __name__ == '__main__':
    unittest_main.main()
