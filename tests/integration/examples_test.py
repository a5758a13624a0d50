"""Every example runs, shortened, in a new clone, with only what Debian and the build provide."""

import os
import pathlib
import re
import subprocess
import sys
import unittest

from tools import unittest_main

ROOT = pathlib.Path(os.environ.get('TEST_SRCDIR', '.')).absolute() / 'sluice'


def rows(table):
    """Example -> its cells."""
    found = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if line.startswith('|') and len(cells) == 4 and cells[0] != 'example' and not cells[0].startswith('-'):
            found[cells[0]] = cells[1:]
    return found


class Examples(unittest.TestCase):

    def test_one_command_runs_every_example_and_prints_a_table(self):
        command = [sys.executable, str(ROOT / 'bench/examples.py'), '--sluice', str(ROOT / 'cli/sluice')]
        # No local data of this machine.
        environment = {name: value for name, value in os.environ.items() if name != 'SLUICE_DATA'}
        done = subprocess.run(command, capture_output=True, text=True, env={**environment, 'SLUICE_BIN_DIR': str(ROOT)})
        print(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        table = rows(done.stdout)
        self.assertEqual(sorted(table), sorted(path.stem for path in (ROOT / 'examples').glob('*.yaml')))
        for name, (rate, metric, seconds) in table.items():
            with self.subTest(example=name):
                self.assertGreater(float(rate), 0)
                self.assertRegex(metric, r'^(accuracy|perplexity|loss) [\d.]|^–$')
                self.assertTrue(re.fullmatch(r'[\d.]+', seconds))
                if metric.startswith('accuracy'):
                    self.assertGreater(float(metric.split()[1]), 15, 'of ten classes or two: nothing was learned')

    def test_unknown_example_is_named(self):
        done = subprocess.run([sys.executable, str(ROOT / 'bench/examples.py'), '--only', 'nothing'], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn('there is no example nothing', done.stderr)


if __name__ == '__main__':
    unittest_main.main()
