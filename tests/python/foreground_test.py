"""`sluice run --foreground`: a debugger in the worker's program. Code after the loop, and the step of a failure."""

from python.testing import requirements
requirements.need('numpy', 'google.protobuf')

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from tests.python import job_processes
from tests.testing import terminal
from tools import unittest_main

_ROOT = pathlib.Path(job_processes.program('ps')).parents[2].absolute()

# The timers are short: without --foreground each would end what waits in the debugger.
_MANIFEST = """apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {{name: debugged}}
spec:
  model: {{type: Custom}}
  data: {{format: Custom}}
  optimizer: {{name: SGD, learningRate: 0.05}}
  training: {{steps: {steps}, globalBatchSize: 32, seed: 1}}
  debug: {{stepDelaySeconds: 0.01}}
  timeouts: {{gradientsSeconds: 2, evaluationSeconds: 2, initializationSeconds: 2, startSeconds: 60}}
  worker: {{replicas: {workers}, command: [{python}, train.py]}}
"""

_PROGRAM = """import numpy as np
import sluice
import time
job = sluice.join()
with sluice.Worker(job, {{'w': np.ones(1)}}, lambda parameters, batch: (1.0, {{'w': parameters['w']}})) as worker:
    for batch in worker.batches(sluice.ArrayDataset(np.ones((640, 1)))):
        {line}
        worker.step(batch)
{after}
"""


class Job(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
        self.environment = {**os.environ, 'TERM': 'xterm', 'LANG': 'C.UTF-8', 'SLUICE_BIN_DIR': str(_ROOT),
                            'PYTHONPATH': os.pathsep.join(os.path.abspath(path) for path in sys.path)}

    def command(self, line='pass', after='', steps=40, workers=1, arguments=()):
        (self.directory / 'train.py').write_text(_PROGRAM.format(line=line, after=after))
        (self.directory / 'job.yaml').write_text(
            _MANIFEST.format(steps=steps, workers=workers, python=json.dumps(sys.executable)))
        return [_ROOT / 'cli/sluice', 'run', self.directory / 'job.yaml', '--state-dir', self.directory / 'state', *arguments]

    def start(self, **options):
        shown = terminal.Terminal(self.command(arguments=['--foreground'], **options), self.environment, controlling=True)
        self.addCleanup(shown.close)
        return shown

    def run_job(self, **options):
        return subprocess.run(self.command(**options), env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, text=True, timeout=200)

    def logs(self):
        return ''.join(path.read_text() for path in (self.directory / 'state/debugged/logs').iterdir())

    def test_breakpoint_stops_the_program_on_the_terminal_without_a_limit(self):
        shown = self.start(line='if batch.step == 5: breakpoint()')
        shown.read(lambda text: '(Pdb)' in text)
        time.sleep(6)  # longer than the job's timers
        shown.type('p "step", batch.step\n')
        shown.read(lambda text: "('step', 5)" in text and text.endswith('(Pdb) '))
        time.sleep(1)  # readline sees a signal only once it waits for input
        shown.type('\x03')
        shown.read(lambda text: '--KeyboardInterrupt--' in text)
        shown.type('c\n')
        shown.read()
        self.assertEqual(shown.process.wait(), 0, shown.output[-2000:])
        self.assertIn('Trained debugged', shown.output)
        self.assertNotIn('ended:', shown.output)
        self.assertNotIn('█', shown.output)
        self.assertNotIn('expelled', self.logs())
        self.assertNotIn('Changed:', self.run_job(line='pass', steps=41).stdout.replace('Changed: spec.training.steps', ''))

    def test_ctrl_c_reaches_the_program_and_suspends_the_job(self):
        shown = self.start(steps=100000, line="batch.step == 5 and print('at five')")
        shown.read(lambda text: 'at five' in text)
        shown.type('\x1a')  # Ctrl-Z, which no shell could undo
        shown.type('\x03')
        shown.read()
        self.assertEqual(shown.process.wait(), 130, shown.output[-2000:])
        self.assertIn('KeyboardInterrupt', shown.output)
        self.assertIn('Stopped debugged at step', shown.output)
        self.assertIn('Run the same command to resume.', shown.output)

    def test_a_breakpoint_without_a_terminal_says_how_to_have_one(self):
        ended = self.run_job(line='breakpoint()')
        self.assertEqual(ended.returncode, 1)
        self.assertIn('`sluice run --workers 1 --foreground` runs the program on the terminal', ended.stdout)

    def test_code_after_the_loop_may_take_its_time_and_is_what_the_job_waits_for(self):
        ended = self.run_job(after='time.sleep(5); open("after.txt", "w").close()')
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn('Training has ended; waiting for the program of worker-0 to end (code after the loop)', ended.stdout)
        self.assertTrue((self.directory / 'after.txt').exists())

    def test_a_program_that_joins_a_job_after_its_end_prints_one_line(self):
        program = ('from unittest import mock\nimport sluice\nfrom sluice import library\n'
                   'with mock.patch.object(library, "Handle", side_effect=sluice.JobEnded("the job has ended")):\n'
                   '    sluice.join("127.0.0.1:1")\n')
        ended = subprocess.run([sys.executable, '-c', program], env=self.environment, stderr=subprocess.PIPE, text=True)
        self.assertEqual(ended.stderr, 'sluice: the job has ended\n')

    def test_a_failure_is_shown_at_the_step_at_which_it_happened(self):
        ended = self.run_job(line='assert batch.step < 30 or job.index == 0, "own bug"', steps=100, workers=2)
        self.assertEqual(ended.returncode, 1)
        self.assertIn('Failed: debugged, last reported at step 30 of 100', ended.stdout)
        self.assertNotIn(' ended:', ended.stdout)
        self.assertIn('sluice: job debugged failed: worker-1: AssertionError in worker 1: own bug', ended.stdout)


if __name__ == '__main__':
    unittest_main.main()
