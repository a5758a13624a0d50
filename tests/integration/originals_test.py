"""bench/originals.py: the job file of every workload is valid, and with a stand-in for the originals, runs and table are correct."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from tools import unittest_main

ROOT = pathlib.Path(os.environ.get('TEST_SRCDIR', '.')).absolute() / 'sluice'
sys.path.insert(0, str(ROOT / 'bench'))

import examples  # noqa: E402
import originals  # noqa: E402

RATE = 0.001
SECONDS = 1e6


class Originals(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(dir=os.environ['TEST_TMPDIR']))

    def test_every_workload_has_valid_job_and_original(self):
        for name, case in originals.CASES.items():
            for quick in ({}, case.quick):
                manifest = examples.read(ROOT / 'examples' / f'{case.example}.yaml')
                for field, value in {**case.changes, **quick}.items():
                    examples.set_field(manifest['spec'], field, value)
                path = self.directory / f'{name}.yaml'
                path.write_text(json.dumps(manifest))
                done = subprocess.run([ROOT / 'cli/sluice', 'validate', path], capture_output=True, text=True)
                with self.subTest(workload=name, quick=bool(quick)):
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertTrue((ROOT / 'bench' / 'peers' / case.theirs[0]).exists(), name)

    def test_each_workload_has_a_row_with_both_measurements(self):
        python = self.directory / 'python'
        python.write_text(f'#!/bin/sh\necho \'{{"gradients_per_second": {RATE}, "seconds": {SECONDS}}}\'\n')
        python.chmod(0o755)

        command = [sys.executable, str(ROOT / 'bench/originals.py'), '--python', str(python), '--sluice', str(ROOT / 'cli/sluice'),
                   '--programs', str(ROOT), '--rounds', '1', '--quick', '--only', 'mlp', 'mlp-asynchronous', 'ray-vector', '--json', str(self.directory / 'values')]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = [line for line in done.stdout.splitlines() if line.startswith('| ') and 'met' in line]
        self.assertEqual(len(rows), 3, done.stdout)  # all beat the stand-in

        values = json.loads((self.directory / 'values').read_text())
        self.assertEqual(values['mlp']['theirs'], [RATE])
        self.assertEqual(values['ray-vector']['theirs'], [SECONDS])
        for name, steps, per_step in (('mlp', 100, 2), ('mlp-asynchronous', 100, 1), ('ray-vector', 20, None)):
            (ours,), (summary,) = values[name]['ours'], values[name]['summaries']
            self.assertEqual(summary['step'], steps, name)
            expected = summary['trainingSeconds'] if per_step is None else steps * per_step / summary['trainingSeconds']
            self.assertAlmostEqual(ours, expected)

    def test_failing_original_is_reported_with_its_output(self):
        python = self.directory / 'python'
        python.write_text('#!/bin/sh\necho no such module >&2\nexit 1\n')
        python.chmod(0o755)
        command = [sys.executable, str(ROOT / 'bench/originals.py'), '--python', str(python), '--only', 'mlp']
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('no such module', done.stderr)


if __name__ == '__main__':
    unittest_main.main()
