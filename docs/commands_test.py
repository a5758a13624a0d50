"""Commands that the pages show exist, with the flags that they show; exit codes are those of the page."""

import functools
import os
import pathlib
import re
import subprocess
import unittest

from docs import pages
from tools import unittest_main

SLUICE = os.path.abspath('cli/sluice')


@functools.lru_cache(maxsize=None)
def help_of(*command):
    return subprocess.run([SLUICE, *command, '--help'], check=True, capture_output=True,
                          text=True).stdout


def subcommands():
    return set(re.findall(r'^  ([a-z]+)  ', help_of().split('Subcommands:')[1], flags=re.MULTILINE))


def flags_of(subcommand):
    return set(re.findall(r'^\s+((?:-\w,)?--[\w-]+)', help_of(subcommand), flags=re.MULTILINE))


def shown_commands(text):
    """(subcommand, its flags) of every `sluice ...` in a fenced block of commands or a code span."""
    lines = []
    for language in ('sh', 'console'):
        for block in pages.fenced_blocks(text, language):
            lines += block.splitlines()
    lines += re.findall(r'`([^`\n]+)`', text)
    for line in lines:
        found = re.match(r'(?:\$ )?(?:\./)?sluice ([a-z]+)\b([^#|>&]*)', line)
        if found:
            yield found[1], re.findall(r'(?<!\S)--?[a-z][\w-]*', found[2])


class Commands(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        pages.enter_repository()

    def test_every_shown_command_exists_with_its_flags(self):
        known = subcommands()
        seen = 0
        for page in pages.pages():
            for subcommand, flags in shown_commands(page.read_text()):
                seen += 1
                with self.subTest(page=str(page), subcommand=subcommand):
                    self.assertIn(subcommand, known)
                    options = {name for flag in flags_of(subcommand) for name in flag.split(',')}
                    self.assertLessEqual(set(flags), options)
        self.assertGreater(seen, 10)  # otherwise the pattern above finds no commands

    def test_readme_manifest_is_valid_and_equals_the_example(self):
        manifest = pages.fenced_blocks(pathlib.Path('README.md').read_text(), 'yaml')[0]
        path = os.path.join(os.environ['TEST_TMPDIR'], 'job.yaml')
        pathlib.Path(path).write_text(manifest)
        checked = subprocess.run([SLUICE, 'validate', path], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

        def normal_form(file):
            text = subprocess.run([SLUICE, 'render', '--yaml', file], check=True,
                                  capture_output=True, text=True).stdout
            return re.sub(r'^.*\buid:.*$', '', text, flags=re.MULTILINE)

        self.assertEqual(normal_form(path), normal_form('examples/fashion-mnist.yaml'))

    def test_exit_codes_of_the_help_are_those_of_the_page(self):
        page = pathlib.Path('docs/operating.md').read_text()
        rows = page.split('`sluice` itself:')[1].split('\n\n')[1].splitlines()[2:]
        table = [tuple(cell.strip() for cell in row.strip('|').split('|')) for row in rows]
        self.assertGreater(len(table), 3)
        for command in [(), ('run',)]:
            shown = re.findall(r'^  (\d+) +(.*)$', help_of(*command).split('Exit codes:')[1], flags=re.MULTILINE)
            self.assertEqual(shown, table)

    def test_command_parser_finds_commands(self):
        text = '```sh\nsluice run job.yaml --workers 4  # more\n```\n`sluice init -o x`, `sluice-ps --job`'
        self.assertEqual(list(shown_commands(text)), [('run', ['--workers']), ('init', ['-o'])])


if __name__ == '__main__':
    unittest_main.main()
