"""What a worker's process does besides the loop: with exceptions that end it, and while it waits."""

import bdb
import contextlib
import sys
import threading
import weakref

from sluice import errors


def end_quietly():
    """That the job has ended is a line, not a traceback: a worker may have begun too late."""
    previous = sys.excepthook

    def hook(kind, error, traceback):
        if issubclass(kind, errors.JobEnded) and not hasattr(sys, 'ps1'):
            print(f'sluice: {error}', file=sys.stderr)
        else:
            previous(kind, error, traceback)

    sys.excepthook = hook


def fail_on_exception(handle, index):
    """An exception that ends the program fails the job, also before there is a Worker: the process that
    replaces this one, and other workers, would raise it, too."""
    previous = sys.excepthook
    joined = weakref.ref(handle)

    def hook(kind, error, traceback):
        handle = joined()
        interactive = hasattr(sys, 'ps1')
        if not interactive and handle is not None and not issubclass(kind, KeyboardInterrupt):
            if handle.end() is None:
                handle.fail(failure(kind, error, index))
        previous(kind, error, traceback)

    sys.excepthook = hook


def failure(kind, error, index):
    if issubclass(kind, bdb.BdbQuit):
        return (f'the debugger in worker {index} was left, or had no input; `sluice run --workers 1 --foreground` runs '
                'the program on the terminal')
    return f'{kind.__name__} in worker {index}: {error}'


@contextlib.contextmanager
def notice(seconds, text):
    """Prints the text to standard error if the block takes longer than this."""
    timer = threading.Timer(seconds, print, [f'sluice: {text}'], {'file': sys.stderr, 'flush': True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
