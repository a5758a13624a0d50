"""The tutorial's files and commands work in its order, and README's six lines train. The cluster's part needs a cluster: its files
are checked, and its job trains here."""

from python.testing import requirements
requirements.need('numpy', 'grpc', 'google.protobuf', 'torch')

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import sluice
from docs import pages
from tools import unittest_main

_ROOT = pathlib.Path(os.environ['TEST_SRCDIR']).absolute() / 'sluice'
_PATIENCE_S = 600  # a busy machine needs a minute to start a program with PyTorch


class Page(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ['TEST_TMPDIR']))
        (self.directory / 'bin').mkdir()
        (self.directory / 'bin' / 'sluice').symlink_to(_ROOT / 'cli/sluice')
        path = [str(self.directory / 'bin'), os.path.dirname(sys.executable), os.environ['PATH']]
        # As if the package and the programs were installed.
        self.enterContext(mock.patch.dict(os.environ, {
            'PATH': os.pathsep.join(path), 'SLUICE_BIN_DIR': str(_ROOT), 'LANG': 'C.UTF-8', 'OMP_NUM_THREADS': '1',
            'PYTHONPATH': os.pathsep.join(os.path.abspath(path) for path in sys.path)}))

    def start(self, command):
        """Starts a command of a page, which prints into a file. (process, file)"""
        log = self.directory / f'output-{time.monotonic_ns()}.txt'
        with open(log, 'wb') as file:
            process = subprocess.Popen(['bash', '-c', f'exec {command}'], cwd=self.directory, stdout=file, stderr=subprocess.STDOUT)
        self.addCleanup(lambda: process.poll() is None and (process.send_signal(signal.SIGINT), process.wait()))
        return process, log

    def output(self, command, code=0):
        process, log = self.start(command)
        self.assertEqual(process.wait(_PATIENCE_S), code, f'{command}\n{log.read_text()[-3000:]}')
        return log.read_text()

    def assert_shows(self, printed, lines):
        self.assertEqual(pages.missing(lines, printed), [], f'the page shows these lines, but the command printed:\n{printed[-3000:]}')

    def wait_for(self, process, condition, what):
        end = time.monotonic() + _PATIENCE_S
        while not condition():
            self.assertIsNone(process.poll(), f'the job ended before {what}')
            self.assertLess(time.monotonic(), end, f'timed out waiting for {what}')
            time.sleep(0.1)


class Tutorial(Page):

    def setUp(self):
        super().setUp()
        self.page = (_ROOT / 'docs/tutorial.md').read_text()
        for name, content in re.findall(r'^<!-- file: (\S+) -->\n```\w*\n(.*?)^```$', self.page, re.MULTILINE | re.DOTALL):
            (self.directory / name).write_text(content)

    def test_commands_print_what_the_page_shows(self):
        commands = iter(pages.transcript(self.page))

        def following(beginning):
            command, lines = next(commands)
            self.assertTrue(command.startswith(beginning), command)
            return command, lines

        command, lines = following('python3 plain.py')
        self.assert_shows(self.output(command), lines)
        command, lines = following('sluice validate job.yaml')
        self.assert_shows(self.output(command), lines)

        # The job trains while the next two commands look at it.
        command, lines = following('sluice run job.yaml')
        job, log = self.start(command)
        for looks in ('sluice status', 'sluice logs'):
            look, shown = following(looks)
            self.wait_for(job, lambda: 'checkpoint at' in log.read_text() and not pages.missing(shown, self.output(look)),
                          f'`{look}` printed what the page shows')
        self.assertEqual(job.wait(_PATIENCE_S), 0, log.read_text())
        trained = log.read_text()
        self.assert_shows(trained, lines)

        command, lines = following('sluice chaos job.yaml')
        # Which faults there are depends on the seed and on the machine's speed. A busy machine starts Python slowly.
        summary = [line for line in lines if not re.match(r' +\d+ ', line)]
        printed = self.output(command + ' --stall 300')
        self.assert_shows(printed, summary)
        self.assertRegex(printed, r'(?m)^ +1 +[\dms. ]+ kill (worker|coordinator)')

        command, lines = following('sluice run job.yaml --fresh')
        job, log = self.start(command)
        self.wait_for(job, lambda: 'checkpoint at' in log.read_text(), 'it saved a checkpoint')
        command, stopped = following('sluice stop')
        self.assert_shows(self.output(command), stopped)
        job.wait(_PATIENCE_S)
        self.assert_shows(log.read_text(), lines)
        command, lines = following('sluice run job.yaml --workers 3')
        resumed = self.output(command)
        self.assert_shows(resumed, lines)
        # BitExact: the same result as of two workers without an interruption.
        self.assertEqual(*(re.search('^Step 2,000 .*', text, re.MULTILINE)[0] for text in (trained, resumed)))

        command, lines = following('python3 use.py')
        printed = self.output(command)
        self.assert_shows(printed, lines)
        self.assertGreater(float(re.search(r'([\d.]+) ?%', printed)[1]), 90)
        command, lines = following('sluice export')
        self.assert_shows(self.output(command), lines)
        exported, trained = (sluice.load(self.directory / path) for path in ('spirals.safetensors', '.sluice/spirals'))
        self.assertEqual({name: value.tobytes() for name, value in exported.items()},
                         {name: value.tobytes() for name, value in trained.items()})
        self.assertEqual(list(commands), [])

    def test_the_clusters_job_is_valid_and_is_the_local_one_with_an_image_and_a_claim(self):
        self.output('sluice validate cluster.yaml')
        local, cluster = ((self.directory / name).read_text() for name in ('job.yaml', 'cluster.yaml'))
        self.assertEqual(pages.missing(local.splitlines(), cluster), [])
        self.assertIn('claimName: checkpoints', cluster)
        self.assertIn('name: checkpoints', (self.directory / 'claim.yaml').read_text())
        (image,) = re.findall(r'image: (\S+)', cluster)
        self.assertIn(f'docker push {image}\n', self.page)
        copied = re.search(r'^COPY (.*) /app/$', self.page, re.MULTILINE)[1].split()
        for name in ('spirals.py', 'train.py'):
            self.assertIn(name, copied)


class Readme(Page):

    def test_six_lines_turn_the_plain_program_into_a_worker(self):
        block = (_ROOT / 'README.md').read_text().split('<!-- six lines -->')[1]
        lines = pages.fenced_blocks(block, 'python')[0]
        self.assertEqual(len(lines.strip().splitlines()), 6)
        for name in ('mnist_plain.py', 'mnist.yaml'):
            shutil.copy(_ROOT / 'examples/python' / name, self.directory)
        (self.directory / 'mnist_sluice.py').write_text(
            'from mnist_plain import *\n'
            'model, loss_fn = make_model(), nn.CrossEntropyLoss()\n'
            'dataset, held_out = make_data(6000, 1), make_data(1000, 2)\n' + lines)
        job = self.directory / 'mnist.yaml'
        result = sluice.run(job, display=False, state_directory=self.directory / '.sluice')
        self.assertEqual(result.step, 282)
        self.assertGreater(result.accuracy, 90)  # chance is 10 %
        self.assertRegex(self.output('sluice logs mnist-python --role worker-0'), r'step 100: loss \d\.\d{3}\n')


if __name__ == '__main__':
    unittest_main.main()
