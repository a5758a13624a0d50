"""Reads a running job: its progress, and its tensors at one committed version."""

import pathlib
import secrets
import threading
import time
import typing

import grpc
import numpy as np

from sluice import errors
from sluice import progress as progress_lib
from sluice import security
from sluice import tensors as tensors_lib
from sluice import transport
from sluice import types
from sluice.protocol import actions
from sluice.protocol import codec
from sluice.protocol import context
from sluice.protocol import elements
from sluice.protocol import layout as layout_lib
from sluice.protocol import receive
from sluice.protocol import wire


_PAUSE = 0.2  # between two requests to a job that is not ready


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
        tls = security.SecretFile(secret_file) if secret_file else None
    else:
        tls = security.find(tls_directory, secret_file)

    connection = Connection(address, tls, shared_memory)
    connection.progress()
    return connection


class Connection:
    """A connection to a running job; see `connect`."""

    def __init__(self, address: str, tls: typing.Any = None, shared_memory: bool = True) -> None:
        self.address = address
        self._tls = tls
        self._shared_memory = shared_memory

    def progress(self) -> progress_lib.Progress:
        """The job's Progress, which a notebook shows as a bar."""
        return progress_lib.Progress(self._call(lambda control: control.progress()))

    def tensors(self, *, torch: bool = False, timeout: float = 60.0) -> 'Tensors':
        """Returns name -> tensor, all of one committed version, while training continues.

        The tensors are like those of `sluice.load`; the result's attribute `version` is their
        version. Waits up to `timeout` seconds in total if the job is not training yet, or changes
        its view.
        """
        deadline = time.monotonic() + timeout
        while True:
            incarnation = secrets.randbits(64) or 1
            # The version stays pinned while the call is open.
            with transport.JobControl(self.address, tls=self._tls) as control:
                snapshot, held = self._open_snapshot(control, incarnation, deadline, timeout)
                reader = _Reader(snapshot, incarnation, self._tls, self._shared_memory)
                held.add_done_callback(lambda _, reader=reader: reader.on_let_go())
                try:
                    job = self._call(lambda control: control.progress()).job
                    flats = reader.read(job, max(1.0, deadline - time.monotonic()))
                    break
                except _LetGo:
                    if time.monotonic() > deadline:
                        raise
                finally:
                    held.cancel()

        result = Tensors((spec.name, tensors_lib.shaped(flat, spec.dtype, spec.shape, torch))
                         for spec, flat in zip(snapshot.table.tensors, flats))
        result.version = snapshot.version
        return result

    def _open_snapshot(self, control, incarnation, deadline, timeout):
        while True:
            try:
                return control.open_snapshot(incarnation, max(1.0, deadline - time.monotonic()))
            except (grpc.RpcError, StopIteration) as error:
                phase = self.progress().phase  # JobNotFound if no process answers
                if phase not in ('starting', 'initializing', 'training'):
                    raise self._not_there(error) from None
                if time.monotonic() > deadline:
                    raise errors.SluiceError(
                        f'the job at {self.address} sent no tensors within {timeout:g} s '
                        f'({transport.describe(error)}); its phase is {phase}. `sluice status` '
                        'shows what it waits for') from None
            time.sleep(_PAUSE)

    def _call(self, call):
        try:
            with transport.JobControl(self.address, tls=self._tls) as control:
                return call(control)
        except grpc.RpcError as error:
            raise self._not_there(error) from None

    def _not_there(self, error):
        return errors.JobNotFound(
            f'the job at {self.address} does not respond ({transport.describe(error)}). Has it '
            'ended? Use sluice.load to read a finished job')

    def __repr__(self):
        return f'<sluice.Connection to {self.address}>'


class Tensors(dict):
    """Name -> tensor, and `version`, the version of all of them."""
    version = 0


class _LetGo(errors.SluiceError):
    """The job released the version while it was read; a new snapshot is needed."""


class _Reader:
    """Pulls a pinned version from all shards."""

    def __init__(self, snapshot, incarnation, tls, shared_memory):
        self._tls = tls
        self._shared_memory = shared_memory
        self._snapshot = snapshot
        self._incarnation = incarnation
        self._index = layout_lib.LayoutIndex(snapshot.table, snapshot.layout)
        self._receiver = receive.VersionReceiver(actions.Buffer.INCOMING)
        self._receiver.reset(self._index)
        self._flats = [np.zeros(elements.element_count(spec), dtype=elements.STORAGE[spec.dtype])
                       for spec in snapshot.table.tensors]
        self._changed = threading.Condition()
        self._error = ''
        self._let_go = False

    def on_let_go(self):
        """The version is no longer pinned: missing frames will not arrive."""
        with self._changed:
            self._let_go = True
            self._changed.notify_all()

    def read(self, job, timeout):
        streams = []
        try:
            for shard in self._snapshot.view.shards:
                stream = transport.FrameStream(shard.address, self._on_frames, self._on_broken,
                                               self._tls, self._shared_memory)
                streams.append(stream)
                hello = wire.Hello(
                    min_wire_version=wire.OLDEST_WIRE_VERSION, max_wire_version=wire.WIRE_VERSION,
                    job=job, shard_incarnation=shard.process.incarnation,
                    sender=wire.ProcessId(role=wire.READER, incarnation=self._incarnation))
                pull = wire.Pull(version=self._snapshot.version, request=1,
                                 snapshot_id=self._snapshot.snapshot_id)
                view = self._snapshot.view.id
                stream.send([(wire.Header(view=view, hello=hello), []),
                             (wire.Header(view=view, pull=pull), [])])

            with self._changed:
                done = self._changed.wait_for(
                    lambda: self._error or self._let_go or self._receiver.is_whole(), timeout)
            if self._let_go and not self._receiver.is_whole():
                raise _LetGo('the tensors could not be read: the job changed its view, or saved a '
                             'checkpoint, before they arrived')
            if self._error or not done:
                raise errors.SluiceError(
                    f'the tensors could not be read: {self._error or "the shards are too slow"}')

            return self._flats
        finally:
            for stream in streams:
                stream.close()

    def _on_frames(self, frames):
        for header, payload in frames:
            self._on_frame(header, payload)

    def _on_frame(self, header, payload):
        with self._changed:
            body = header.WhichOneof('body')
            if body == 'refused':
                self._let_go = True
            elif body == 'data':
                try:
                    stores = []
                    self._receiver.accept(header.data, payload, stores)
                    for store in stores:
                        to = self._flats[store.tensor][store.offset:store.offset + store.count]
                        dtype = self._index.dtypes[store.tensor]
                        codec.decode_into(store.codec, dtype, store.payload, to)
                except (context.ContractError, ValueError) as error:
                    self._error = str(error)
            self._changed.notify_all()

    def _on_broken(self, why):
        with self._changed:
            if not self._receiver.is_whole():
                self._error = self._error or f'lost the connection to a shard: {why}'
            self._changed.notify_all()
