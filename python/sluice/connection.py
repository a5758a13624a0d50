"""Reads a running job: its progress, and its tensors at one committed version."""

import pathlib
import time
import typing

from sluice import errors
from sluice import library
from sluice import progress as progress_lib
from sluice import security
from sluice import tensors as tensors_lib
from sluice import types

_PAUSE = 0.2  # between two requests to a job that is not ready
_TIMEOUT = 5.0


def connect(name_or_address: str, state_directory: types.Path = '.sluice',
            tls_directory: typing.Optional[types.Path] = None, shared_memory: bool = True,
            secret_file: typing.Optional[types.Path] = None) -> 'Connection':
    """Connects to a running job: one of this machine by its name, or any by its coordinator's
    host:port.

    `tls_directory` (or SLUICE_TLS_DIRECTORY): directory of a reader's certificate, if the job uses
    TLS. `secret_file` (or SLUICE_SECRET_FILE): file with the run's secret, if the job requires one;
    for a job of this machine it is found automatically. `shared_memory`: as in sluice.join.
    """
    address = name_or_address
    if ':' not in name_or_address:
        run = pathlib.Path(state_directory) / name_or_address / 'run'
        port = run / 'coordinator.port'
        try:
            address = f'127.0.0.1:{int(port.read_text())}'
        except (FileNotFoundError, ValueError):
            raise errors.JobNotFound(
                f"there is no running job '{name_or_address}' in {state_directory}: {port} does "
                'not exist. `sluice status` lists the jobs of this machine; for another machine, give '
                'host:port of its coordinator') from None
        # Jobs of this machine use plain text.
        if secret_file is None and (run / 'secret').exists():
            secret_file = run / 'secret'
        credentials = security.Credentials(None, secret_file) if secret_file else None
    else:
        credentials = security.find(tls_directory, secret_file)

    connection = Connection(address, credentials, shared_memory)
    connection.progress()
    return connection


class Connection:
    """A connection to a running job; see `connect`."""

    def __init__(self, address: str, credentials: typing.Any = None,
                 shared_memory: bool = True) -> None:
        self.address = address
        self._credentials = credentials
        self._shared_memory = shared_memory

    def progress(self) -> progress_lib.Progress:
        """The job's Progress, which a notebook shows as a bar."""
        try:
            return progress_lib.Progress(library.progress(self._options(_TIMEOUT)))
        except errors.JobNotFound as error:
            raise self._not_there(error) from None

    def tensors(self, *, torch: bool = False, timeout: float = 60.0) -> 'Tensors':
        """Returns name -> tensor, all of one committed version, while training continues.

        The tensors are like those of `sluice.load`; the result's attribute `version` is their
        version. Waits up to `timeout` seconds in total if the job is not training yet, or changes
        its view.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                left = max(1.0, deadline - time.monotonic())
                version, found = library.snapshot(self._options(left))
                break
            except errors.UsageError:
                raise
            except errors.SluiceError as error:
                phase = self.progress().phase  # JobNotFound if no process answers
                if phase not in ('starting', 'initializing', 'training'):
                    raise self._not_there(error) from None
                if time.monotonic() > deadline:
                    raise errors.SluiceError(
                        f'the job at {self.address} sent no tensors within {timeout:g} s '
                        f'({error}); its phase is {phase}. `sluice status` shows what it waits '
                        'for') from None
            time.sleep(_PAUSE)

        result = Tensors((name, tensors_lib.shaped(flat, dtype, shape, torch))
                         for name, dtype, shape, flat in found)
        result.version = version
        return result

    def _options(self, timeout):
        return library.options(self.address, timeout, self._credentials, self._shared_memory)

    def _not_there(self, error):
        return errors.JobNotFound(
            f'the job at {self.address} does not respond ({error}). Has it ended? Use sluice.load '
            'to read a finished job')

    def __repr__(self):
        return f'<sluice.Connection to {self.address}>'


class Tensors(dict):
    """Name -> tensor, and `version`, the version of all of them."""
    version = 0
