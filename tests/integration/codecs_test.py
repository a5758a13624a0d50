"""The effect of gradient compression on accuracy and bytes sent: real processes, MNIST, the command of docs/compression.md."""

import os
import pathlib
import subprocess
import sys
import unittest

from tools import unittest_main

ROOT = pathlib.Path(os.environ.get('TEST_SRCDIR', '.')).absolute() / 'sluice'
PROGRAM = ROOT / 'bench/codec_accuracy.py'
DATA = pathlib.Path(os.environ.get('SLUICE_DATA', PROGRAM.resolve().parents[2] / 'shared' / 'data')) / 'mnist'
# Upper bound of bytes relative to raw; small tensors end in partially filled blocks.
FRACTIONS = {'None': 1, 'Float16': 0.5, 'Int8': 0.26, 'OneBit': 0.04, 'TopK 0.01': 0.03}


def rows(table):
    """Codec -> (accuracy in percent, fraction of raw bytes)."""
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if line.startswith('|') and cells[0] != 'push' and not cells[0].startswith('-'):
            found[cells[0]] = (float(cells[1].rstrip(' %')), float(cells[3].rstrip(' %')) / 100)
    return found


@unittest.skipUnless(DATA.exists(), f'MNIST is not at {DATA} (SLUICE_DATA)')
class Codecs(unittest.TestCase):

    def test_each_codec_with_error_feedback_loses_less_than_a_point_for_a_fraction_of_the_bytes(self):
        command = [sys.executable, str(PROGRAM), '--data', str(DATA), '--sluice', str(ROOT / 'cli/sluice'), '--only', *FRACTIONS]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, 'SLUICE_BIN_DIR': str(ROOT)})
        print(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        table = rows(done.stdout)
        self.assertEqual(list(table), list(FRACTIONS))
        best = table['None'][0]
        self.assertGreater(best, 93)
        for codec, (accuracy, fraction) in table.items():
            with self.subTest(codec=codec):
                self.assertGreater(accuracy, best - 1)
                self.assertLessEqual(fraction, FRACTIONS[codec])


if __name__ == '__main__':
    unittest_main.main()
