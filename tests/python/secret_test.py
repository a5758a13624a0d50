"""A run's secret: workers and readers of Python show it, and are refused without it."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf')

import os
import pathlib
import tempfile
import unittest
from unittest import mock

import sluice
from sluice import errors
from sluice import security
from tests.python import job_processes
from tests.python import quadratic_worker
from tools import unittest_main


class Secret(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))

    def write(self, name, text):
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_text(text)
        return path

    def test_workers_and_readers_with_the_secret_are_served(self):
        job = job_processes.base_job(
            training={'steps': 100000}, parameterServer={'replicas': 2}, worker={'replicas': 1},
            optimizer={'name': 'SGD', 'learningRate': 0.05})
        processes = job_processes.JobProcesses(job, self.directory / 'job')
        self.addCleanup(processes.__exit__)
        processes.start()
        processes.start_python_worker(0, quadratic_worker.__file__, '0.02')
        processes.wait_for_step(5)
        self.assertTrue(sluice.connect(processes.address,
                                       secret_file=processes.secret_file).tensors())
        other = self.write('other', 'x' * 64)
        with self.assertRaisesRegex(errors.JobNotFound, 'UNAUTHENTICATED: the call shows a wrong'):
            sluice.connect(processes.address, secret_file=other)
        with mock.patch.dict(os.environ):
            del os.environ['SLUICE_SECRET_FILE']
            with self.assertRaisesRegex(errors.JobNotFound, 'the call shows no secret'):
                sluice.connect(processes.address)
            with self.assertRaisesRegex(errors.SluiceError, str(processes.secret_file)):
                sluice.join(processes.address, index=1, timeout=1)
        processes.wait_for_step(processes.progress().step + 5)

    def test_an_argument_overrides_the_environment(self):
        secret = self.write('secret', 'y' * 64 + '\n')
        with mock.patch.dict(os.environ, SLUICE_SECRET_FILE=str(secret)):
            self.assertEqual(security.find().secret_file, str(secret))
            other = self.write('other', 'z' * 64)
            self.assertEqual(security.find(secret_file=other), (None, other))
            self.assertEqual(security.find(self.directory), (self.directory, None))
            with self.assertRaisesRegex(errors.UsageError, 'ca.crt'):
                sluice.connect('127.0.0.1:9', tls_directory=self.directory)
            with self.assertRaisesRegex(errors.UsageError, 'not both'):
                security.find(self.directory, secret)

    def test_a_file_without_a_secret_is_named(self):
        for text in ('', 'a b\x01', 'x' * 1000, '\u00e9' * 64):
            path = self.write('wrong', text)
            with self.assertRaisesRegex(errors.UsageError, str(path)):
                sluice.connect('127.0.0.1:9', secret_file=path)
        with self.assertRaisesRegex(errors.UsageError, 'nowhere'):
            sluice.join('127.0.0.1:9', secret_file=self.directory / 'nowhere')


if __name__ == '__main__':
    unittest_main.main()
