"""Reads batches ahead in processes of torch.utils.data.DataLoader, which fetches them by position.

Order and random numbers come from the job: of the DataLoader only its processes and the transfer of
batches are used.
"""

import collections
import copy
import multiprocessing
import os
import pickle
import signal
import socket
import stat
import sys
import threading
import traceback
import typing
from multiprocessing import connection

import numpy as np
import torch

from sluice import errors
from sluice import library

_POLL = 1.0          # seconds after which a dead loader process is noticed
_RESTARTS = 3        # in a row, without a batch in between
_GUARD_SECONDS = 0.5
_MAPPED = '::ffff:'      # before an IPv4 address in a socket of IPv6


class _Task(typing.NamedTuple):
    number: int
    key: typing.Optional[tuple]  # samples.Key; None: nothing to read


class _Failure(typing.NamedTuple):
    """An exception in a loader process."""
    error: bytes  # pickled
    text: str


class _Reported(Exception):
    """The traceback of an error in a loader process."""

    def __str__(self):
        return f'\n{self.args[0]}'


class _Tasks:
    """The data set of the DataLoader: its samples are the batches of tasks."""

    def __init__(self, readers, cancelled):
        self._readers = readers
        self._cancelled = cancelled  # shared with the loader processes; one element for each task ahead

    def __getitem__(self, task):
        number, key, indices = task
        if key is None:
            return None
        held_out, first, size = key
        reader = self._readers[held_out]
        place = number % len(self._cancelled)
        try:
            content = reader.read(range(first, first + size), indices,
                                  lambda: bool(self._cancelled[place]))
            return copied(content) if reader.own_collate else content
        except BaseException as error:  # also SystemExit: the process reports it and continues
            return _failure(error, indices)


def _failure(error, indices):
    where = (f'In loader process {torch.utils.data.get_worker_info().id}, reading samples '
             f'{", ".join(str(index) for index in indices[:8])}{", ..." if len(indices) > 8 else ""}:\n')
    if not isinstance(error, Exception):
        error = errors.UsageError(f'the dataset raised {type(error).__name__} in a loader process: '
                                  f'{error}').with_traceback(error.__traceback__)
    text = where + ''.join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        content = pickle.dumps(error)
        pickle.loads(content)
    except Exception:
        content = pickle.dumps(errors.SluiceError(f'{type(error).__name__}: {error}'))
    return _Failure(content, text)


def copied(content: typing.Any) -> typing.Any:
    """The same with memory of its own: a data set or collate may return a buffer that it reuses."""
    if isinstance(content, torch.Tensor):
        return content.detach().clone()
    if isinstance(content, np.ndarray):
        return content.copy()
    if isinstance(content, tuple) and hasattr(content, '_fields'):
        return type(content)(*(copied(part) for part in content))
    if type(content) in (list, tuple):
        return type(content)(copied(part) for part in content)
    if type(content) is dict:
        return {key: copied(part) for key, part in content.items()}
    return content if isinstance(content, (str, bytes, int, float)) else copy.deepcopy(content)


def _as_it_is(content):
    return content


class _Start:
    """Runs first in each loader process."""

    def __init__(self, address):
        self._address = address
        self._type = torch.get_default_dtype()

    def __call__(self, number):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker
        torch.set_default_dtype(self._type)
        _leave_connections(self._address)
        threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    parent = multiprocessing.parent_process()
    started_by = os.getppid()
    while parent.is_alive() and os.getppid() == started_by:
        parent.join(_GUARD_SECONDS)
    os._exit(1)


def _leave_connections(address):
    """A forked process has the worker's connections to the coordinator, which would then stay open when
    the worker dies: replaces them."""
    host, _, port = address.rpartition(':')
    try:
        peers = {place[4][:2] for place in socket.getaddrinfo(host.strip('[]'), int(port))}
    except (OSError, ValueError):
        return
    with open(os.devnull, 'rb') as null:
        for fd in map(int, os.listdir('/proc/self/fd')):
            if _peer(fd) in peers:
                os.dup2(null.fileno(), fd)


def _peer(fd):
    """(address, port) of the other side of a connection; None if the file is none."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        with socket.socket(fileno=os.dup(fd)) as opened:
            address, port = opened.getpeername()[:2]
    except (OSError, ValueError):  # not connected, or another family
        return None
    return address[len(_MAPPED):] if address.startswith(_MAPPED) else address, port


class Loaders:
    """The loader processes of a worker.

    `readers`: held-out data? -> samples.Reader. `indices_of(key)`: the samples of a batch.

    Intuition. The DataLoader takes a task from `_next_task` when a process can begin another one, and
    returns the results in the order of the tasks. `_plan` has the batches that are wanted, the most
    urgent one first. A task that is no longer wanted is cancelled: its process stops after the sample
    that it reads.
    """

    def __init__(self, readers: dict, indices_of: typing.Callable, num_workers: int, prefetch: int,
                 pin_memory: bool, context: typing.Any, address: str, index: int) -> None:
        self.ahead = num_workers * prefetch
        self._indices_of = indices_of
        self._index = index
        self._cancelled = torch.zeros(self.ahead + 1, dtype=torch.uint8).share_memory_()
        self._plan = []
        self._tasks = 0
        self._outstanding = collections.deque()
        self._arrived = {}
        self._restarts = 0
        self._loader = torch.utils.data.DataLoader(
            _Tasks(readers, self._cancelled), batch_size=None, sampler=self, collate_fn=_as_it_is,
            num_workers=num_workers, prefetch_factor=prefetch, pin_memory=pin_memory, timeout=_POLL,
            multiprocessing_context=context, worker_init_fn=_Start(address),
            # Otherwise iter() draws from the program's random numbers.
            generator=torch.Generator())
        self._context = context or multiprocessing.get_start_method()
        self._iterator = None
        self._processes = []
        self._start()

    def get(self, key: tuple, following: typing.List[tuple]) -> typing.Any:
        """The batch; the following ones are read next, and all others are dropped."""
        self._plan = [key, *following]
        wanted = set(self._plan)
        self._arrived = {each: content for each, content in self._arrived.items() if each in wanted}
        for task in self._outstanding:
            if task.key not in wanted:
                self._cancel(task)
        while key not in self._arrived:
            self._pull()
        content = self._arrived.pop(key)
        self._plan = following
        # Tasks without content wait in the place of others that can be begun now.
        while self._outstanding and self._outstanding[0].key is None and self._next_key() is not None:
            self._pull()
        if isinstance(content, _Failure):
            raise pickle.loads(content.error) from _Reported(content.text)
        return content

    def close(self) -> None:
        """Ends the processes."""
        for task in self._outstanding:
            self._cancel(task)
        self._iterator = None

    # ---- the sampler of the DataLoader

    def __iter__(self):
        return iter(self._next_task, None)

    def _next_task(self):
        key = self._next_key()
        number, self._tasks = self._tasks, self._tasks + 1
        self._cancelled[number % len(self._cancelled)] = 0
        self._outstanding.append(_Task(number, key))
        return number, key, None if key is None else self._indices_of(key)

    def _next_key(self):
        begun = {task.key for task in self._outstanding if not self._is_cancelled(task)}
        # After a death only what is needed now, so that another batch does not kill it once more.
        plan = self._plan[:1] if self._restarts else self._plan
        return next((key for key in plan if key not in begun and key not in self._arrived), None)

    def _cancel(self, task):
        self._cancelled[task.number % len(self._cancelled)] = 1

    def _is_cancelled(self, task):
        return bool(self._cancelled[task.number % len(self._cancelled)])

    # ---- the processes

    def _start(self):
        self._outstanding.clear()
        before = set(multiprocessing.active_children())
        # The main thread would get a handler that raises when a loader dies, whatever the program does.
        try:
            self._iterator = library.interruptible(lambda: iter(self._loader))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise errors.UsageError(
                f'the dataset, or collate, cannot be passed to loader processes ({error}): they are '
                f'started by {self._context!r}, which pickles both. Define classes '
                'and functions at the top level of a module, or give '
                "multiprocessing_context='fork', or num_workers=0") from error
        self._processes = [each for each in multiprocessing.active_children() if each not in before]

    def _pull(self):
        """Waits for the oldest task, or restarts the processes if one has died."""
        try:
            content = next(self._iterator)
        except Exception as error:
            timed_out = 'timed out' in str(error)
            # A process that was killed is dead only some time after its connections are.
            dead = self._dead(0.0 if timed_out else _POLL)
            if not dead and not timed_out:
                raise
        else:
            task = self._outstanding.popleft()
            if task.key is not None and not self._is_cancelled(task):
                self._arrived[task.key] = content
                self._restarts = 0
            return
        if dead:
            self._restart(dead)

    def _dead(self, seconds):
        """The processes that have ended, after at most this time."""
        ended = connection.wait([each.sentinel for each in self._processes], seconds)
        for each in self._processes:
            if each.sentinel in ended:
                each.join(_POLL)  # its files are closed before the process has ended
        return [each for each in self._processes if not each.is_alive()]

    def _restart(self, dead):
        how = ', '.join(f'loader process {each.pid} of worker {self._index} ended with '
                        f'{_code(each.exitcode)}' for each in dead)
        self._restarts += 1
        if self._restarts > _RESTARTS:
            raise errors.SluiceError(
                f'{how}, {self._restarts} times in a row without a batch in between: its output has the '
                'cause, or num_workers=0, which reads the samples in the worker itself. A signal 9 is '
                'often the limit of memory: give fewer num_workers, or a smaller prefetch')
        print(f'sluice: {how}; the loader processes are restarted, and read its samples again',
              file=sys.stderr, flush=True)
        self.close()
        self._start()


def _code(exitcode):
    return f'signal {-exitcode}' if exitcode and exitcode < 0 else f'exit code {exitcode}'
