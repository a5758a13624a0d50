"""A Python worker in a job with TLS, with certificates made by the command line."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf')

import os
import pathlib
import subprocess
import tempfile
import unittest

import grpc

import sluice
from sluice import errors
from sluice import wire
from tests.python import job_control
from tests.python import job_processes
from tests.python import quadratic_worker
from tools import unittest_main


class Tls(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
        self.tls = self.directory / 'tls'
        self.certify()

    def certify(self, *arguments):
        command = [str(pathlib.Path(job_processes.program('ps')).parents[2] / 'cli/sluice'), 'certificates',
                   'test', '-o', str(self.tls), '--shards', '2', '--workers', '2', *arguments]
        return subprocess.run(command, check=True, capture_output=True, encoding='utf-8').stdout

    def start(self, steps, delay):
        job = job_processes.base_job(
            tls='Enabled', training={'steps': steps}, parameterServer={'replicas': 2},
            worker={'replicas': 2}, optimizer={'name': 'SGD', 'learningRate': 0.05})
        processes = job_processes.JobProcesses(job, self.directory / 'job', self.tls)
        self.addCleanup(processes.__exit__)
        processes.start()
        for index in range(2):
            processes.start_python_worker(index, quadratic_worker.__file__, str(delay))
        return processes

    def test_a_job_trains_with_workers_of_python(self):
        processes = self.start(steps=60, delay=0)
        for name in ('worker-0', 'worker-1', 'coordinator'):
            self.assertEqual(processes.wait_for_exit(name, 120), 0, processes.log(name))

    def test_certificates_are_renewed_while_it_trains(self):
        processes = self.start(steps=2000, delay=0.02)
        processes.wait_for_step(5)
        before = (self.tls / 'worker-1' / 'tls.crt').read_bytes()
        self.assertIn('worker-1', self.certify())
        self.assertNotEqual((self.tls / 'worker-1' / 'tls.crt').read_bytes(), before)
        processes.kill('worker-1')
        processes.start_python_worker(1, quadratic_worker.__file__, '0.02')
        processes.wait_for_members(2)
        processes.wait_for_step(processes.progress().step + 5)

    def test_a_reader_reads_tensors_and_may_not_command(self):
        processes = self.start(steps=2000, delay=0.02)
        processes.wait_for_step(5)
        reader = str(self.tls / 'reader')
        connection = sluice.connect(processes.address, tls_directory=reader)
        self.assertTrue(connection.tensors())
        # Payloads that TLS encrypts on the wire must not be in shared memory in plain text.
        for name in ('ps-0', 'worker-0'):
            maps = pathlib.Path(f'/proc/{processes._living[name].pid}/maps').read_text()
            self.assertNotIn('sluice-stream', maps)
        with job_control.JobControl(processes.address, reader) as control:
            with self.assertRaises(grpc.RpcError) as raised:
                control.call('SetDesired', wire.SetDesiredRequest(suspend=True),
                              wire.SetDesiredResponse)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
        self.assertIn('it is for: operator', raised.exception.details())
        with self.assertRaises(errors.JobNotFound):
            sluice.connect(processes.address)  # in plain text
        processes.wait_for_step(processes.progress().step + 5)

    def test_a_directory_without_credentials_is_named(self):
        with self.assertRaisesRegex(errors.UsageError, 'nowhere.*ca.crt'):
            sluice.join('127.0.0.1:9', tls_directory=self.directory / 'nowhere')


if __name__ == '__main__':
    unittest_main.main()
