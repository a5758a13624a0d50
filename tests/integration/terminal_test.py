"""What `sluice run` shows on a terminal."""

import os
import pathlib
import re
import signal
import tempfile
import unittest

from tests.testing import terminal
from tools import unittest_main

_ROOT = pathlib.Path(os.environ.get('TEST_SRCDIR', '.')).absolute() / 'sluice'

_MANIFEST = """apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {name: logistic}
  data: {format: Synthetic, synthetic: {samples: 512, shape: [6], classes: 2}}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: %d, globalBatchSize: 16}
  debug: {stepDelaySeconds: 0.05}
  parameterServer: {replicas: 1}
  worker: {replicas: 2}
"""


class TerminalTest(unittest.TestCase):

    def start(self, steps, **environment):
        directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR')))
        (directory / 'job.yaml').write_text(_MANIFEST % steps)
        own = {name: value for name, value in os.environ.items() if name != 'NO_COLOR'}
        shown = terminal.Terminal([_ROOT / 'cli/sluice', 'run', directory / 'job.yaml', '--bin-dir', _ROOT, '--state-dir',
                                   directory / 'state'], {**own, 'TERM': 'xterm', 'LANG': 'C.UTF-8', **environment})
        self.addCleanup(shown.close)
        return shown

    def test_progress_bar_is_redrawn_in_place_and_removed_at_end(self):
        shown = self.start(steps=40)
        # A drawing may arrive in several chunks; the processes are below the bar.
        shown.read(lambda text: re.search(r'example(?s:.)*█+░+\s+\d+ %(?s:.)*ps-0 (?s:.)*worker-1 ', text))
        shown.read()
        self.assertEqual(shown.process.wait(), 0, shown.output[-2000:])
        end = shown.screen.text()
        self.assertNotRegex(end, '[█░]')
        self.assertNotIn('worker-1 ', end)
        self.assertIn('Trained example', end)
        # The bar was drawn many times in one place.
        self.assertGreater(shown.output.count('█'), shown.output.count('Trained'))
        self.assertIn('\x1b[32m', shown.output)
        self.assertLessEqual(shown.widest, terminal.COLUMNS)
        self.assertEqual(shown.screen.unknown, set())

    def test_no_colors_where_none_are_wanted(self):
        shown = self.start(steps=20, NO_COLOR='1')
        shown.read()
        self.assertEqual(shown.process.wait(), 0, shown.output[-2000:])
        self.assertRegex(shown.output, '[█░]')
        self.assertNotRegex(shown.output, r'\x1b\[[0-9;]*m')

    def test_dumb_terminal_gets_plain_lines(self):
        shown = self.start(steps=20, TERM='dumb')
        shown.read()
        self.assertEqual(shown.process.wait(), 0, shown.output[-2000:])
        self.assertNotIn('\x1b', shown.output)
        self.assertIn('Trained example', shown.output)

    def test_ctrl_c_explains_what_happens(self):
        shown = self.start(steps=100000)
        shown.read(lambda text: '█' in text or '░' in text)
        shown.process.send_signal(signal.SIGINT)
        shown.read()
        self.assertEqual(shown.process.wait(), 130, shown.output[-2000:])
        end = shown.screen.text()
        self.assertIn('press Ctrl-C again to stop immediately', end)
        self.assertIn('Run the same command to resume.', end)
        self.assertNotRegex(end, '[█░]')


if __name__ == '__main__':
    unittest_main.main()
