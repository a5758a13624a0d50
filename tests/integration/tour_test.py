"""The commands of README's tour, run on its manifest with fewer steps, print lines of the form that README shows."""

import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

from docs import pages
from tools import unittest_main

PROGRAMS = os.path.abspath('.')
README = os.path.abspath('README.md')
DATA = pathlib.Path('/usr/share/datasets/fashion-mnist')
PATIENCE_S = 240
# The changes that shorten the manifest; everything else is as in README.
SHORTER = {'epochs: 2': 'steps: 300', 'intervalSteps: 300': 'intervalSteps: 60\n      maxSamples: 500', 'intervalSteps: 500': 'intervalSteps: 100'}


def shown(readme):
    """[(command, the lines of its output that README shows)] of the tour."""
    return pages.transcript(readme.split('<!-- tour -->')[1].split('<!-- end of tour -->')[0])


def read(path):
    """The content of a file of /proc; empty if its process or thread has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ''


def descendants(pid):
    children = [child for children in pathlib.Path('/proc').glob(f'{pid}/task/*/children') for child in read(children).split()]
    return [one for child in map(int, children) for one in (child, *descendants(child))]


def command_line(pid):
    return read(pathlib.Path(f'/proc/{pid}/cmdline')).replace('\0', ' ')


class Tour(unittest.TestCase):

    def setUp(self):
        if not DATA.is_dir():
            self.skipTest(f'{DATA} does not exist: install dataset-fashion-mnist')
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ['TEST_TMPDIR']))
        with open(README, encoding='utf-8') as file:
            readme = file.read()
        self.shown = shown(readme)
        manifest = pages.fenced_blocks(readme, 'yaml')[0]
        for long, short in SHORTER.items():
            self.assertIn(long, manifest)
            manifest = manifest.replace(long, short)
        (self.directory / 'examples').mkdir()
        (self.directory / 'examples' / 'fashion-mnist.yaml').write_text(manifest)

    def arguments(self, command):
        words = command.split()
        self.assertEqual(words[0], 'sluice')
        words[0] = os.path.join(PROGRAMS, 'cli', 'sluice')
        return words + (['--bin-dir', PROGRAMS] if words[1] == 'run' else [])

    def output(self, command):
        done = subprocess.run(self.arguments(command), cwd=self.directory, capture_output=True, text=True, timeout=PATIENCE_S,
                              env={**os.environ, 'LANG': 'C.UTF-8'})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def has(self, printed, lines):
        return not pages.missing(lines, printed)

    def assert_has(self, printed, lines):
        self.assertEqual(pages.missing(lines, printed), [], f'README shows these lines, but the command printed:\n{printed[-3000:]}')

    def wait_for(self, condition, what):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), end, f'timed out waiting for {what}')
            time.sleep(0.1)

    def test_commands_print_what_readme_shows(self):
        (run, training), (again, finished), (status, state), (logs, log_lines) = self.shown
        log = self.directory / 'output.txt'
        with open(log, 'w', encoding='utf-8') as file:
            job = subprocess.Popen(self.arguments(run), cwd=self.directory, stdout=file, stderr=subprocess.STDOUT)
        self.addCleanup(lambda: job.poll() is None and (job.send_signal(signal.SIGINT), job.wait()))

        printed = ''

        def state_is_shown():
            nonlocal printed
            self.assertIsNone(job.poll(), f'the job ended before it had the status that README shows; its last status was:\n{printed}')
            if 'checkpoint at step' not in log.read_text():
                return False
            printed = self.output(status)
            return self.has(printed, state)

        self.wait_for(state_is_shown, 'the status that README shows')
        self.assert_has(self.output(logs), log_lines)
        (worker,) = [pid for pid in descendants(job.pid) if re.search(r'sluice-worker .*--index[ =]1\b', command_line(pid))]
        os.kill(worker, signal.SIGKILL)
        self.assertEqual(job.wait(timeout=PATIENCE_S), 0, log.read_text()[-3000:])
        self.assert_has(log.read_text(), training)
        self.assertEqual(run, again)
        self.assert_has(self.output(again), finished)


if __name__ == '__main__':
    unittest_main.main()
