"""The comparison of two saved runs. Measures nothing."""
import contextlib
import io
import json
import pathlib
import tempfile
import unittest
import unittest.mock

from bench import compare
from tools import unittest_main

SECONDS = 'push + pull, 64 B, Add'


def run(directory, name, values):
    path = pathlib.Path(directory) / name
    path.write_text(json.dumps({
        'time': '2026-01-02T03:04:05Z', 'commit': name, 'machine': '2 x test', 'load': [1.0, 2.0],
        'values': [{'line': line, 'column': column, 'rounds': rounds} for (line, column), rounds in values.items()]}))
    return str(path)


class Compare(unittest.TestCase):

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def main(self, *arguments):
        output = io.StringIO()
        with unittest.mock.patch('sys.argv', ['compare.py', *arguments]), contextlib.redirect_stdout(output):
            try:
                compare.main()
                return 0, output.getvalue()
            except SystemExit as error:
                return error.code, output.getvalue()

    def test_a_shorter_time_and_a_higher_rate_are_better(self):
        old = run(self.directory, 'a', {(SECONDS, 'sluice'): [1, 9, 2], ('mlp', '2x2'): [100]})
        new = run(self.directory, 'b', {(SECONDS, 'sluice'): [1], ('mlp', '2x2'): [150], ('mlp', '1x1'): [7]})
        code, output = self.main(old, new, '--check', '3')
        self.assertEqual(code, 0)
        self.assertIn(f'| {SECONDS} | sluice | 2 | 1 | +100.0 % |', output)
        self.assertIn('| mlp | 2x2 | 100 | 150 | +50.0 % |', output)
        self.assertNotIn('1x1', output)
        self.assertIn('old: a, 2026-01-02T03:04:05Z, 2 x test, load 1.0 2.0', output)

    def test_check_fails_only_beyond_the_bound(self):
        old = run(self.directory, 'a', {('mlp', '2x2'): [100]})
        new = run(self.directory, 'b', {('mlp', '2x2'): [96]})
        self.assertEqual(self.main(old, new, '--check', '3')[0], 1)
        self.assertEqual(self.main(old, new, '--check', '5')[0], 0)
        self.assertEqual(self.main(old, new)[0], 0)

    def test_other_files_are_refused_by_name(self):
        old = run(self.directory, 'a', {('mlp', '2x2'): [100]})
        for text in ('', '[]', '{"values": [{"line": "x"}]}'):
            other = pathlib.Path(self.directory) / 'other'
            other.write_text(text)
            code, _ = self.main(old, str(other))
            self.assertIn(f'{other} is not a file of bench/run.py --save', code)
        self.assertIn('no value in common', self.main(old, run(self.directory, 'c', {('lstm-lm', '2x2'): [1]}))[0])


if __name__ == '__main__':
    unittest_main.main()
