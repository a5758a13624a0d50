"""What `sluice run` shows on a terminal."""

import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest

import fcntl

from tools import unittest_main

_ROOT = pathlib.Path(os.environ.get('TEST_SRCDIR', '.')).absolute() / 'sluice'
_PATIENCE = 120
_ROWS, _COLUMNS = 40, 100

_MANIFEST = """apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {name: logistic}
  data: {format: Synthetic, synthetic: {samples: 512, shape: [6], classes: 2}}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: %d, globalBatchSize: 16, stepDelaySeconds: 0.05}
  parameterServer: {replicas: 1}
  worker: {replicas: 2}
"""


class Screen:
    """As much of a terminal as the view uses: text, line ends, cursor up, clear to the end."""

    def __init__(self):
        self.lines = ['']
        self.row = 0
        self.column = 0
        self.unknown = set()

    def feed(self, text):
        for token in re.findall(r'\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+|\x1b', text):
            self._take(token)

    def _take(self, token):
        if token == '\r':
            self.column = 0
        elif token == '\n':
            self.row += 1
            if self.row == len(self.lines):
                self.lines.append('')
        elif token.startswith('\x1b'):
            if token.endswith('A'):
                self.row = max(0, self.row - int(token[2:-1] or 1))
            elif token == '\x1b[J':
                self.lines[self.row:] = [self.lines[self.row][:self.column]]
            elif not token.endswith('m'):
                self.unknown.add(token)
        else:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[:self.column] + token + line[self.column + len(token):]
            self.column += len(token)

    def text(self):
        return '\n'.join(self.lines)


class Terminal(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
        self.output = ''
        self.screen = Screen()
        self.widest = 0  # of the lines with a bar

    def start(self, steps, **environment):
        (self.folder / 'job.yaml').write_text(_MANIFEST % steps)
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', _ROWS, _COLUMNS, 0, 0))
        own = {name: value for name, value in os.environ.items() if name != 'NO_COLOR'}
        self.process = subprocess.Popen(
            [_ROOT / 'services/cli/sluice', 'run', self.folder / 'job.yaml', '--bin-dir', _ROOT,
             '--state-dir', self.folder / 'state'],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**own, 'TERM': 'xterm', **environment})
        os.close(slave)
        self.addCleanup(self.end)

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def read(self, until=None):
        """Until the screen shows it, or (None) the terminal is closed."""
        deadline = time.monotonic() + _PATIENCE
        rest = b''
        while until is None or not until(self.screen.text()):
            self.assertLess(time.monotonic(), deadline, self.output[-2000:])
            if not select.select([self.master], [], [], 0.1)[0]:
                continue
            try:
                chunk = os.read(self.master, 4096)
            except OSError:  # the last one has closed it
                return
            if not chunk:
                return
            rest += chunk
            try:
                text, rest = rest.decode(), b''
            except UnicodeDecodeError:  # in the middle of a character
                continue
            self.output += text
            self.screen.feed(text)
            bars = [len(line) for line in self.screen.lines if re.search('[█░]', line)]
            self.widest = max([self.widest] + bars)

    def test_a_progress_bar_is_drawn_over_and_gone_at_the_end(self):
        self.start(steps=40)
        self.read(lambda text: re.search(r'█+░+\s+\d+ %', text))
        shown = self.screen.text()
        self.assertIn('example', shown)
        self.assertRegex(shown, r'worker-1 ')
        self.assertRegex(shown, r'ps-0 ')
        self.read()
        self.assertEqual(self.process.wait(), 0, self.output[-2000:])
        end = self.screen.text()
        self.assertNotRegex(end, '[█░]')
        self.assertNotIn('worker-1 ', end)
        self.assertIn('Trained example', end)
        # Drawn in one place, again and again.
        self.assertGreater(self.output.count('█'), self.output.count('Trained'))
        self.assertIn('\x1b[32m', self.output)
        self.assertLessEqual(self.widest, _COLUMNS)
        self.assertEqual(self.screen.unknown, set())

    def test_without_colours_where_these_are_not_wanted(self):
        self.start(steps=20, NO_COLOR='1')
        self.read()
        self.assertEqual(self.process.wait(), 0, self.output[-2000:])
        self.assertRegex(self.output, '[█░]')
        self.assertNotRegex(self.output, r'\x1b\[[0-9;]*m')

    def test_plain_lines_on_a_terminal_that_can_do_no_more(self):
        self.start(steps=20, TERM='dumb')
        self.read()
        self.assertEqual(self.process.wait(), 0, self.output[-2000:])
        self.assertNotIn('\x1b', self.output)
        self.assertIn('Trained example', self.output)

    def test_ctrl_c_says_what_it_does(self):
        self.start(steps=100000)
        self.read(lambda text: '█' in text or '░' in text)
        self.process.send_signal(signal.SIGINT)
        self.read()
        self.assertEqual(self.process.wait(), 130, self.output[-2000:])
        end = self.screen.text()
        self.assertIn('press Ctrl-C again to stop at once', end)
        self.assertIn('The same command goes on from here.', end)
        self.assertNotRegex(end, '[█░]')


if __name__ == '__main__':
    unittest_main.main()
