"""The terminal for tests: its screen does not depend on how the output is split, and it never waits in vain."""

import os
import unittest

from tests.testing import terminal
from tools import unittest_main


class ScreenTest(unittest.TestCase):

    def test_screen_does_not_depend_on_chunk_sizes(self):
        drawing = 'first\r\n\x1b[32m██\x1b[0m rest\r\n\x1b[2A\x1b[Jagain\r\nend'
        for size in range(1, len(drawing) + 1):
            screen = terminal.Screen()
            for begin in range(0, len(drawing), size):
                screen.feed(drawing[begin:begin + size])
            self.assertEqual((screen.text(), screen.unknown), ('again\nend', set()), size)

    def test_unknown_escape_sequences_are_recorded(self):
        screen = terminal.Screen()
        for piece in ('a\x1b', '[2', 'Kb'):
            screen.feed(piece)
        self.assertEqual((screen.text(), screen.unknown), ('ab', {'\x1b[2K'}))


class TerminalTest(unittest.TestCase):

    def shell(self, script):
        shown = terminal.Terminal(['/bin/sh', '-c', script], os.environ)
        self.addCleanup(shown.close)
        return shown

    def test_reads_until_text_is_shown_and_to_the_end(self):
        shown = self.shell('echo one; read line; echo two')
        shown.read(lambda text: 'one' in text)
        self.assertNotIn('two', shown.screen.text())
        os.write(shown.master, b'\n')
        shown.read()
        self.assertIn('two', shown.screen.text())

    def test_text_that_was_overwritten_counts_as_shown(self):
        shown = self.shell(r"printf 'one\r\n\033[1A\033[Jtwo\r\n\033[1A\033[Jthree\r\n'")
        shown.process.wait()
        shown.read(lambda text: text.startswith('two'))
        shown.read()
        self.assertEqual(shown.screen.text().split(), ['three'])

    def test_end_before_text_is_shown_is_an_error(self):
        with self.assertRaisesRegex(AssertionError, '(?s)never showed.*one'):
            self.shell('echo one').read(lambda text: 'two' in text)


if __name__ == '__main__':
    unittest_main.main()
