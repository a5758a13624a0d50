"""A terminal for programs under test: shows what a person would see of their output."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

_PATIENCE = 120
ROWS, COLUMNS = 40, 100


class Screen:
    """The part of a terminal that `sluice run` uses: text, line ends, cursor up, clear to the end."""

    def __init__(self):
        self.lines = ['']
        self.row = 0
        self.column = 0
        self.unknown = set()
        self._begun = ''  # the beginning of an incomplete escape sequence

    def feed(self, text):
        text = self._begun + text
        self._begun = re.search(r'(?:\x1b(?:\[[0-9;?]*)?)?\Z', text)[0]
        text = text[:len(text) - len(self._begun)]
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


class Terminal:
    """A program that runs on its own terminal. `controlling`: Ctrl-C on the terminal sends signals."""

    def __init__(self, command, environment, controlling=False):
        self.output = ''
        self.screen = Screen()
        self.widest = 0  # length of the longest line with a bar
        self._decoder = codecs.getincrementaldecoder('utf-8')()
        self._undrawn = []
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(list(map(str, command)), stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                        env=environment,
                                        preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controlling else None)
        os.close(slave)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def type(self, text):
        os.write(self.master, text.encode())

    def read(self, until=None):
        """Reads until `until(screen text)` is true, or (None) until the program closes the terminal. Raises AssertionError if it is
        closed before `until` is true."""
        deadline = time.monotonic() + _PATIENCE
        while not self._draw(until):
            if time.monotonic() > deadline:
                raise AssertionError(self.output[-2000:])
            if not select.select([self.master], [], [], 0.1)[0]:
                continue
            try:
                chunk = os.read(self.master, 4096)
            except OSError:  # the last process has closed it
                chunk = b''
            if not chunk:
                if until is not None:
                    raise AssertionError(f'the terminal closed and never showed the expected text:\n{self.output[-2000:]}')
                return
            # However much has arrived, the screen is checked each time before the cursor moves up to redraw.
            self._undrawn += re.split(r'(?=\x1b\[[0-9]*A)', self._decoder.decode(chunk))

    def _draw(self, until):
        """Draws what has arrived. True: it stopped as soon as `until` was true, and draws the rest next time."""
        if until is not None and until(self.screen.text()):
            return True
        while self._undrawn:
            text = self._undrawn.pop(0)
            self.output += text
            self.screen.feed(text)
            bars = [len(line) for line in self.screen.lines if re.search('[█░]', line)]
            self.widest = max([self.widest] + bars)
            if until is not None and until(self.screen.text()):
                return True
        return False
