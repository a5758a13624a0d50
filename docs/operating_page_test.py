"""docs/operating.md lists exactly the flags of the three programs, with their defaults."""

import pathlib
import re
import subprocess
import unittest

from tools import unittest_main

PROGRAMS = {
    'sluice-coordinator': 'services/coordinator/sluice-coordinator',
    'sluice-ps': 'services/ps/sluice-ps',
    'sluice-worker': 'services/worker/sluice-worker',
}


def flags_of_help(text):
    """Flag -> default ('' if none is shown), from the output of --help."""
    flags = {}
    for line in text.splitlines():
        # "  --threads INT:INT in [1 - 256]=1     threads for arithmetic"
        found = re.match(r'\s+(?:-\w,)?(--[\w-]+)(?:(?!  ).)*', line)
        if found:
            default = re.search(r'=(\S+)$', found[0])
            flags[found[1]] = default[1] if default else ''
    return flags


def flags_of_page(text, heading):
    """The same, from the first table after the line that contains `heading`."""
    table = text[text.index(heading):].split('\n\n')[1]
    flags = {}
    for row in table.splitlines()[2:]:
        names, default = row.split(' | ')[:2]
        for name in re.findall(r'`(--[\w-]+)`', names):
            flags[name] = default.strip('`')
    return flags


class OperatingPage(unittest.TestCase):

    def setUp(self):
        self.page = pathlib.Path('docs/operating.md').read_text()
        self.common = flags_of_page(self.page, 'All three programs:')

    def test_each_program_has_exactly_the_flags_of_its_table(self):
        for program, path in PROGRAMS.items():
            with self.subTest(program=program):
                text = subprocess.run([path, '--help'], check=True, capture_output=True,
                                      text=True).stdout
                shown = set(flags_of_help(text))
                # The tables name these flags in the form that differs from the default.
                for flag in ('grpc-experiments', 'shared-memory'):
                    if f'--{flag}' in shown:
                        shown = shown - {f'--{flag}'} | {f'--no-{flag}'}
                own = flags_of_page(self.page, f'`{program}`:')
                self.assertEqual(shown, set(own) | set(self.common))

    def test_page_has_the_defaults_that_programs_show(self):
        seen = 0
        for program, path in PROGRAMS.items():
            text = subprocess.run([path, '--help'], check=True, capture_output=True,
                                  text=True).stdout
            own = {**self.common, **flags_of_page(self.page, f'`{program}`:')}
            for flag, default in flags_of_help(text).items():
                if default:
                    seen += 1
                    with self.subTest(program=program, flag=flag):
                        self.assertEqual(own.get(flag), default)
        self.assertGreater(seen, 6)  # otherwise the pattern above finds no defaults


if __name__ == '__main__':
    unittest_main.main()
