"""Workers in C: the example trains, and no misuse of the interface harms program or job."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf')

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest

from tests.python import job_processes
from tools import unittest_main

_ROOT = pathlib.Path(os.environ.get('TEST_SRCDIR', '.')) / 'sluice'
_EXAMPLE = _ROOT / 'examples/c/linear_worker'


class Jobs(unittest.TestCase):

    def start(self, workers=1, debug=None, timeouts=None, **training):
        job = job_processes.base_job(
            model={'type': 'Custom'}, worker={'replicas': workers}, debug=debug or {},
            timeouts=timeouts or {},
            training={'steps': 20, **training}, data={'evaluation': {'intervalSteps': 10}})
        processes = job_processes.JobProcesses(
            job, tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
        self.addCleanup(processes.__exit__)
        return processes.start()


class Example(Jobs):

    def train(self, workers, disturb=lambda processes: None, delay=0.0):
        processes = self.start(workers, steps=200, determinism='BitExact',
                               debug={'stepDelaySeconds': delay})
        for index in range(workers):
            processes.start_program(index, [_EXAMPLE])
        disturb(processes)
        for index in range(workers):
            name = f'worker-{index}'
            self.assertEqual(processes.wait_for_exit(name, 100), 0, processes.log(name))
            step, *model = map(float, re.findall(r'[\d.]+', processes.log(name)))
            self.assertEqual(step, 200)
            for number, wanted in zip(model, (1, 2, 3, 4, 0.5)):
                self.assertAlmostEqual(number, wanted, delta=0.1)
        self.assertEqual(processes.wait_for_exit('coordinator'), 0)
        manifest = json.loads((processes.newest_checkpoint() / 'manifest.json').read_text())
        return {file.get('partition', 0): file['state_hash'] for file in manifest['files']}

    def test_trains_the_same_bits_with_two_workers_one_of_which_is_killed(self):
        def kill(processes):
            processes.wait_for_members(2)
            processes.wait_for_step(10)
            processes.kill('worker-1')
            processes.start_program(1, [_EXAMPLE])
            processes.wait_for_members(2)

        self.assertEqual(self.train(1), self.train(2, kill, delay=0.02))

    def test_is_plain_c_without_more_than_the_header(self):
        source = pathlib.Path('examples/c/linear_worker.c').read_text()
        included = re.findall(r'#include <(.*)>', source)
        self.assertEqual(set(included), {'sluice/worker.h', 'stdio.h', 'stdlib.h', 'string.h'})
        self.assertLessEqual(source.count('\n'), 150)


class Misuse(Jobs):

    def run_case(self, name, **options):
        processes = self.start(**options)
        case = subprocess.Popen(
            [_ROOT / 'tests/interface/worker_interface', name], env={
                **os.environ, 'SLUICE_COORDINATOR': processes.address,
                'SLUICE_SECRET_FILE': str(processes.secret_file)},
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(case.kill)
        said = []
        for line in case.stdout:
            said.append(line)
            if line.strip() in ('stop the shard', 'continue the shard'):
                stop = line.startswith('stop')
                processes.signal('ps-0', signal.SIGSTOP if stop else signal.SIGCONT)
                case.stdin.write('\n')
                case.stdin.flush()
        self.assertEqual((case.wait(60), said[-1:]), (0, ['ok\n']), ''.join(said))
        case.stdin.close()
        case.stdout.close()

    def test_null_arguments(self):
        self.run_case('null_arguments')

    def test_wrong_options(self):
        self.run_case('wrong_options')

    def test_wrong_tensors(self):
        self.run_case('wrong_tensors')

    def test_wrong_order_and_calls_after_the_end(self):
        self.run_case('wrong_order')

    def test_memory_of_gradients_is_released(self):
        self.run_case('tokens')

    def test_metrics(self):
        self.run_case('metrics')

    def test_two_threads(self):
        # A shard is stopped for a while.
        self.run_case('threads', timeouts={'suspectSeconds': 20, 'heartbeatTimeoutSeconds': 30})

    def test_fork(self):
        self.run_case('forks')

    def test_readers_and_failure(self):
        self.run_case('readers', steps=1000000)


class Library(unittest.TestCase):

    def test_shows_the_functions_of_its_header_only(self):
        header = pathlib.Path('include/sluice/worker.h').read_text()
        declared = set(re.findall(r'^SLUICE_API [\w ]+\*? *(sluice_\w+)\(', header, re.M))
        table = subprocess.run(['nm', '-D', '--defined-only', _ROOT / 'services/worker/library/libsluice-worker.so'],
                               check=True, capture_output=True, text=True).stdout
        shown = {line.split()[-1] for line in table.splitlines()}
        self.assertEqual(shown, declared)
        self.assertGreater(len(declared), 20)


if __name__ == '__main__':
    unittest_main.main()
