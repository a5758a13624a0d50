"""Makes the pictures of the pages from a real job: the live view of `sluice run`, and Prometheus' console page of that job.

    bazel run //tests/monitoring:pictures -- docs

It trains examples/fashion-mnist.yaml, and kills a worker after the first evaluation. It needs Debian's packages chromium,
prometheus, python3-rich and tmux.
"""

import argparse
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

from tests.monitoring import prometheus

COLUMNS, ROWS = 90, 24
NAMES = {'live view': 'live-view.svg', 'console': 'console.png'}
COMMAND = 'sluice run examples/fashion-mnist.yaml'


def svg(screen, title):
    """The picture of a terminal's text with its colors (escape sequences)."""
    from rich import console
    from rich import text
    recorder = console.Console(record=True, width=COLUMNS, file=io.StringIO())
    recorder.print(text.Text.from_ansi(screen.rstrip()))
    picture = recorder.export_svg(title=title, unique_id='live')
    # The viewer's own fonts: each run of text has its width in the picture.
    picture = re.sub(r'@font-face \{.*?\}', '', picture, flags=re.DOTALL).replace('Fira Code, monospace', 'monospace')
    return re.sub(r'\n\s*\n+', '\n', picture)


class Terminal:
    """A program in a terminal of tmux."""

    def __init__(self, directory, command):
        self._tmux = ['tmux', '-S', str(directory / 'tmux'), '-f', '/dev/null']
        environment = {**os.environ, 'LANG': 'C.UTF-8', 'TERM': 'xterm-256color'}
        environment.pop('NO_COLOR', None)
        subprocess.run([*self._tmux, 'new-session', '-d', '-x', str(COLUMNS), '-y', str(ROWS), '-c', str(directory), *command],
                       check=True, env=environment)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        subprocess.run([*self._tmux, 'kill-server'], check=False)

    def screen(self, *options):
        return subprocess.run([*self._tmux, 'capture-pane', '-p', *options], check=True, capture_output=True, text=True).stdout

    def wait_for(self, pattern, seconds=600):
        """The screen with its colors, as soon as its text has the pattern."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.screen(), re.DOTALL):
            if time.monotonic() > deadline:
                raise AssertionError(f'after {seconds} s the terminal does not show "{pattern}":\n{self.screen()}')
            time.sleep(0.2)
        return self.screen('-e')


def worker(run_pid, index):
    """The process id of a worker that this `sluice run` has started."""
    children = subprocess.run(['ps', '--ppid', str(run_pid), '-o', 'pid=,args='], check=True, capture_output=True, text=True).stdout
    (found,) = re.findall(rf'^ *(\d+) \S*sluice-worker .*--index[ =]{index}\b', children, re.MULTILINE)
    return int(found)


def photograph(page, picture, directory):
    subprocess.run(
        ['chromium', '--headless', '--no-sandbox', '--no-first-run', '--disable-background-networking', '--disable-component-update',
         '--disable-gpu', '--hide-scrollbars', '--force-device-scale-factor=1.25', '--window-size=1000,1120',
         f'--user-data-dir={directory / "browser"}', f'--screenshot={picture}', page.as_uri()], check=True, capture_output=True)


def make(output, manifest, programs, prefix):
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        shutil.copy(manifest, directory / 'job.yaml')
        state = directory / '.sluice' / 'fashion-mnist'
        with prometheus.Prometheus(directory / 'prometheus') as server, Terminal(directory, [
                *prefix, str(programs / 'cli/sluice'), 'run', 'job.yaml', '--bin-dir', str(programs)]) as terminal:
            server.wait_for('all processes serve metrics', lambda: server.scrape(state / 'run', 5), 120)
            terminal.wait_for(r'Step 300 .*worker-1')
            os.kill(worker(int((state / 'lock').read_text()), 1), signal.SIGKILL)
            screen = terminal.wait_for(r'worker-1 ended: killed.*checkpoint at step 500.*worker-1 +training')
            (output / NAMES['live view']).write_text(svg(screen, COMMAND))
            # The replacement has an address of its own. Rates over five minutes need a while.
            server.wait_for('the new worker serves metrics', lambda: server.scrape(state / 'run', 5), 120)
            terminal.wait_for(r'Step 600 ')
            page = server.get('/consoles/sluice.html?training_job=fashion-mnist&namespace=default')
        # The browser may be slow beside other work; the page is as it was.
        (directory / 'console.html').write_text(page)
        photograph(directory / 'console.html', output / NAMES['console'], directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('output', help='the directory of the pictures')
    parser.add_argument('--priority', action='store_true', help='run the job at real-time priority, beside other work')
    arguments = parser.parse_args()
    output = pathlib.Path(os.environ.get('BUILD_WORKING_DIRECTORY', '.')) / arguments.output
    make(output, 'examples/fashion-mnist.yaml', pathlib.Path('.').absolute(), ['chrt', '-r', '10'] if arguments.priority else [])
    for file in NAMES.values():
        print(f'{output / file}: {(output / file).stat().st_size / 1024:.0f} KiB')


if __name__ == '__main__':
    main()
