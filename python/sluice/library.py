"""libsluice-worker.so by ctypes: the functions of include/sluice/worker.h, and their errors as
exceptions.

The library runs the protocol on threads of its own. Calls release the interpreter's lock.
"""

import atexit
import concurrent.futures
import ctypes
import os
import pathlib
import threading
import typing
import weakref

import numpy as np

from sluice import elements
from sluice import errors
from sluice import wire

VARIABLE = 'SLUICE_WORKER_LIBRARY'
_NAME = 'libsluice-worker.so'
_ABI = 3

# sluice_code
(OK, INVALID_ARGUMENT, WRONG_STATE, BUSY, FORKED, NOT_FOUND, WIRE_VERSION, MODEL_DIFFERS, DUPLICATE, ENDED,
 JOB_FAILED, UNAVAILABLE, TIMEOUT, INTERNAL) = range(14)
# sluice_work_kind
GRADIENTS, EVALUATE, ROWS, METRICS = 1, 2, 3, 4

_POLL = 0.1  # seconds after which a waiting thread handles signals


class _Struct(ctypes.Structure):

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class _JoinOptions(_Struct):
    _fields_ = [('struct_size', ctypes.c_size_t), ('coordinator', ctypes.c_char_p),
                ('job', ctypes.c_char_p), ('index', ctypes.c_uint32),
                ('timeout_seconds', ctypes.c_double), ('tls_directory', ctypes.c_char_p),
                ('secret_file', ctypes.c_char_p), ('advertised_host', ctypes.c_char_p),
                ('no_shared_memory', ctypes.c_int), ('log_level', ctypes.c_char_p)]


class _Tensor(_Struct):
    _fields_ = [('struct_size', ctypes.c_size_t), ('name', ctypes.c_char_p),
                ('dtype', ctypes.c_int), ('kind', ctypes.c_int),
                ('shape', ctypes.POINTER(ctypes.c_int64)), ('dimensions', ctypes.c_size_t),
                ('initial', ctypes.c_void_p), ('initial_bytes', ctypes.c_size_t),
                ('rows', ctypes.c_int)]


class Model(_Struct):
    """What the job should know of a model besides its tensors: sluice_model."""
    _fields_ = [('struct_size', ctypes.c_size_t), ('smallest_batch', ctypes.c_uint32),
                ('smallest_batch_module', ctypes.c_char_p),
                ('notes', ctypes.POINTER(ctypes.c_char_p)), ('note_count', ctypes.c_size_t),
                ('kernels', ctypes.c_char_p), ('library', ctypes.c_char_p),
                ('threads', ctypes.c_uint32)]


class _Work(_Struct):
    _fields_ = [('struct_size', ctypes.c_size_t), ('kind', ctypes.c_int),
                ('step', ctypes.c_uint64), ('first_microbatch', ctypes.c_uint64),
                ('microbatch_size', ctypes.c_uint64), ('microbatches', ctypes.c_uint64),
                ('seed', ctypes.c_uint64), ('sum_of_means', ctypes.c_int),
                ('indices', ctypes.POINTER(ctypes.c_uint64)), ('samples', ctypes.c_uint64),
                ('positions', ctypes.POINTER(ctypes.c_uint64))]


class Result(_Struct):
    """The result of one piece of work: sums over its samples."""
    _fields_ = [('struct_size', ctypes.c_size_t), ('loss_sum', ctypes.c_double),
                ('correct', ctypes.c_double), ('data_seconds', ctypes.c_double),
                ('compute_seconds', ctypes.c_double), ('counted', ctypes.c_int)]


_u64, _size, _text, _address = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
_TYPES = {'v': None, 'i': ctypes.c_int, 'u': ctypes.c_uint32, 'q': _u64, 'z': _size,
          'd': ctypes.c_double, 's': _text, 'p': _address, 'Q': ctypes.POINTER(_u64),
          'Z': ctypes.POINTER(_size), 'S': ctypes.POINTER(_text), 'P': ctypes.POINTER(_address),
          'I': ctypes.POINTER(ctypes.c_int), 'J': ctypes.POINTER(_JoinOptions),
          'T': ctypes.POINTER(_Tensor), 'M': ctypes.POINTER(Model), 'W': ctypes.POINTER(_Work), 'R': ctypes.POINTER(Result)}
# The types of the result and of the arguments.
_FUNCTIONS = {
    'abi_version': 'u', 'last_error': 's', 'crc32c': 'upz', 'free': 'vp', 'snapshot_free': 'vp',
    'worker_join': 'iJP', 'worker_job': 'ipSPZ', 'worker_add_tensor': 'ipT', 'worker_open': 'ipqq',
    'worker_describe': 'ipM', 'worker_add_digest': 'ipsq', 'worker_weight': 'ipd',
    'worker_sum': 'ipspzdI',
    'worker_next': 'ipdW', 'worker_parameter': 'ipuPZ', 'worker_gradient': 'ipupzq',
    'worker_row_gradient': 'ipupzpzq', 'worker_no_gradient': 'ipu', 'worker_rows': 'ipupz',
    'worker_buffer_change': 'ipupz', 'worker_released': 'ippzZ', 'worker_cancelled': 'ipI',
    'worker_done': 'ipR', 'worker_position': 'ipQ', 'worker_indices': 'ipqzQ', 'worker_ended': 'ip',
    'worker_leave': 'ipsd', 'worker_add_metric': 'ips', 'worker_metric_state': 'ipupz',
    'worker_metric_parts': 'ipZ', 'worker_metric_part': 'ipuzPZ', 'worker_metric_value': 'ipuds',
    'worker_fail': 'ips', 'worker_stop_job': 'ips', 'worker_save_job': 'ip', 'worker_close': 'ip',
    'worker_free': 'ip', 'job_progress': 'iJPZ',
    'snapshot_open': 'iJP', 'snapshot_info': 'ipQZ', 'snapshot_tensor': 'ipzT',
}


def _path() -> str:
    """The path of the library: beside the package, named by the environment, or built by Bazel."""
    here = pathlib.Path(__file__).parent
    places = [here / _NAME, here.parents[1] / 'services/worker/library' / _NAME]
    if os.environ.get(VARIABLE):
        places.insert(1, pathlib.Path(os.environ[VARIABLE]))
    for place in places:
        if place.is_file():
            return str(place)
    raise ImportError(f'{_NAME} is missing: it is neither in {here} nor named by {VARIABLE}. Build it by '
                      '`bazel build //services/worker/library:libsluice-worker.so`')


def _load():
    library = ctypes.CDLL(_path())
    for name, types in _FUNCTIONS.items():
        function = getattr(library, f'sluice_{name}')
        function.restype, *function.argtypes = (_TYPES[each] for each in types)
    if library.sluice_abi_version() != _ABI:
        raise ImportError(f'{_path()} has ABI {library.sluice_abi_version()}, and this package '
                          f'needs {_ABI}: install both from one release')
    return library


_lock = threading.Lock()
_library = None


def get():
    """The loaded library."""
    global _library
    with _lock:
        if _library is None:
            _library = _load()
        return _library


def crc32c(content: typing.Any) -> int:
    """CRC-32C (Castagnoli) of an object with a buffer: the checksum of the files of checkpoints."""
    data = np.frombuffer(content, dtype=np.uint8)
    return get().sluice_crc32c(data.ctypes.data, data.size)


_CLASSES = {INVALID_ARGUMENT: errors.UsageError, WRONG_STATE: errors.UsageError,
            BUSY: errors.UsageError, FORKED: errors.UsageError, NOT_FOUND: errors.JobNotFound,
            ENDED: errors.JobEnded, JOB_FAILED: errors.JobFailed}


def check(code: int) -> None:
    """Raises the error of a call on this thread."""
    if code != OK:
        raise error_of(code, get().sluice_last_error().decode('utf-8', 'replace'))


def error_of(code: int, text: str) -> errors.SluiceError:
    """The exception for a code of the library, with what to do about it."""
    if code == WIRE_VERSION:
        return errors.VersionMismatch(
            f'the job uses another version of the protocol: {text}. Install the package from the '
            'same release as the `sluice` that runs the job.')
    if code == MODEL_DIFFERS:
        return errors.ModelMismatch(
            f'{text}. Every worker of a job must build the same model (names, shapes, types) and '
            'open the same data; a job that continues from a checkpoint must have its model.')
    if code == DUPLICATE:
        return errors.DuplicateWorker(f'the worker with this index is already running: {text}. Give '
                                      'each process its own index.')
    if code == ENDED:
        return errors.JobEnded(
            f'the job has ended{": " + text if text else ""}. Leave the loop over '
            'worker.batches() when it ends; to train more, start a new job.')
    if code == JOB_FAILED and 'not finite' in text:
        return errors.NonFiniteGradient(text)
    return _CLASSES.get(code, errors.SluiceError)(text)


def interruptible(function: typing.Callable[[], typing.Any]) -> typing.Any:
    """Calls a blocking function on another thread, so that this thread handles signals."""
    future: concurrent.futures.Future = concurrent.futures.Future()

    def run():
        try:
            future.set_result(function())
        except BaseException as error:  # passed on
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result()


def _encode(value):
    return None if value is None else os.fsencode(value)


def _encode_text(text):
    return text.encode('utf-8', 'replace')


def options(address: str, timeout: float, credentials: typing.Any = None,
            shared_memory: bool = True, job: typing.Optional[str] = None, index: int = 0,
            advertised_host: typing.Optional[str] = None) -> _JoinOptions:
    """`credentials`: the result of security.find."""
    return _JoinOptions(
        coordinator=address.encode(), job=_encode(job), index=index, timeout_seconds=timeout,
        tls_directory=_encode(credentials and credentials.tls_directory),
        secret_file=_encode(credentials and credentials.secret_file),
        advertised_host=_encode(advertised_host), no_shared_memory=not shared_memory,
        log_level=_encode(os.environ.get('SLUICE_LOG_LEVEL', 'off')))


def progress(joining: _JoinOptions) -> typing.Any:
    """The JobProgress of a running job."""
    memory, size = _address(), _size()
    library = get()

    def call():
        check(library.sluice_job_progress(joining, memory, size))

    interruptible(call)
    try:
        return wire.JobProgress.FromString(ctypes.string_at(memory, size.value))
    finally:
        library.sluice_free(memory)


def snapshot(joining: _JoinOptions) -> typing.Tuple[int, list]:
    """(version, [(name, data type, shape, flat array)]) of a running job."""
    library = get()
    handle, version, count = _address(), _u64(), _size()

    def call():
        check(library.sluice_snapshot_open(joining, handle))

    interruptible(call)
    try:
        check(library.sluice_snapshot_info(handle, version, count))
        tensors = []
        for place in range(count.value):
            tensor = _Tensor()
            check(library.sluice_snapshot_tensor(handle, place, tensor))
            tensors.append((tensor.name.decode(), tensor.dtype,
                            [tensor.shape[i] for i in range(tensor.dimensions)],
                            _over(tensor.initial, tensor.initial_bytes, tensor.dtype).copy()))
        return version.value, tensors
    finally:
        library.sluice_snapshot_free(handle)


def _over(address, size, dtype, owner=None):
    memory = (ctypes.c_char * size).from_address(address)
    memory.owner = owner
    return np.frombuffer(memory, dtype=elements.STORAGE[dtype])


_living: 'weakref.WeakSet[Handle]' = weakref.WeakSet()


@atexit.register
def _close_all():
    # The library's threads must end before the interpreter and its libraries are shut down.
    for handle in list(_living):
        handle.close()


class Handle:
    """A sluice_worker. Its memory lives as long as this object, or an array over it."""

    def __init__(self, joining: _JoinOptions) -> None:
        self._handle = _address()  # first: __del__ reads it, also if there is no library
        self._library = get()
        self._held = {}  # token -> the object whose memory the library reads
        self._token = 0
        self._token_lock = threading.Lock()
        self._room = (_u64 * 64)()
        self._closed = False

        def call():
            check(self._library.sluice_worker_join(joining, self._handle))

        interruptible(call)
        _living.add(self)

    def __del__(self):
        if self._handle:
            self._library.sluice_worker_free(self._handle)

    def job(self) -> typing.Tuple[str, typing.Any]:
        """(name, JobSpec)"""
        name, spec, size = _text(), _address(), _size()
        check(self._library.sluice_worker_job(self._handle, name, spec, size))
        return name.value.decode(), wire.JobSpec.FromString(ctypes.string_at(spec, size.value))

    def add_tensor(self, spec: typing.Any, initial: np.ndarray, rows: bool = False) -> None:
        """`spec`: a TensorSpec."""
        shape = (ctypes.c_int64 * len(spec.shape))(*spec.shape)
        check(self._library.sluice_worker_add_tensor(self._handle, _Tensor(
            name=spec.name.encode(), dtype=spec.dtype, kind=spec.kind, shape=shape,
            dimensions=len(shape), initial=initial.ctypes.data, initial_bytes=initial.nbytes,
            rows=rows)))

    def describe(self, smallest_batch: int = 1, module: str = '',
                 notes: typing.Sequence[str] = (), kernels: str = '', library: str = '',
                 threads: int = 0) -> None:
        """What the job should know of the model besides its tensors, before `open`.

        The model cannot be trained on fewer than `smallest_batch` samples at once, because of
        `module`; the job reports each of `notes` once; `kernels`, `library` and `threads` are what
        the bits of the results depend on."""
        encoded = [_encode_text(note) for note in notes]
        check(self._library.sluice_worker_describe(self._handle, Model(
            smallest_batch=smallest_batch, smallest_batch_module=_encode_text(module),
            notes=(ctypes.c_char_p * len(encoded))(*encoded), note_count=len(encoded),
            kernels=_encode_text(kernels), library=_encode_text(library), threads=threads)))

    def add_digest(self, name: str, value: int) -> None:
        """Adds a 64-bit digest of something that the samples' values depend on, before `open`."""
        check(self._library.sluice_worker_add_digest(self._handle, name.encode(), value))

    def add_metric(self, name: str) -> None:
        """Adds a metric of the program's own; they are numbered in this order."""
        check(self._library.sluice_worker_add_metric(self._handle, _encode_text(name)))

    def open(self, training: int, evaluation: int) -> None:
        """Reports to the job that model and data are open."""
        check(self._library.sluice_worker_open(self._handle, training, evaluation))

    def next(self) -> typing.Optional[_Work]:
        """Waits for work; None when the job has succeeded, or this worker has left."""
        work = _Work()
        while True:
            code = self._library.sluice_worker_next(self._handle, _POLL, work)
            if code == OK:
                return work
            if code == ENDED:
                return None
            if code != TIMEOUT:
                check(code)

    def end(self) -> typing.Optional[errors.SluiceError]:
        """The error with which the worker has ended; None while it runs."""
        code = self._library.sluice_worker_ended(self._handle)
        if code == OK:
            return None
        return error_of(code, self._library.sluice_last_error().decode('utf-8', 'replace'))

    def address(self, tensor: int) -> int:
        """The address of a tensor of the version that is current, or is evaluated."""
        memory = _address()
        check(self._library.sluice_worker_parameter(self._handle, tensor, memory, None))
        return memory.value

    def array(self, tensor: int, dtype: int) -> np.ndarray:
        """A flat array over this memory, which lives as long as the array."""
        memory, size = _address(), _size()
        check(self._library.sluice_worker_parameter(self._handle, tensor, memory, size))
        return _over(memory.value, size.value, dtype, self)

    def weight(self, weight: float) -> None:
        """The weight of the work's samples in the mean over the step (before the first gradient) or
        over the evaluation."""
        check(self._library.sluice_worker_weight(self._handle, weight))

    def sum(self, name: str, values: np.ndarray) -> None:
        """Replaces the values (float64) by their sums over the workers that compute in the step; leaves
        them if the job no longer needs the work."""
        abandoned = ctypes.c_int()
        while True:
            code = self._library.sluice_worker_sum(self._handle, _encode_text(name), values.ctypes.data, values.size,
                                                   _POLL, abandoned)
            if code != TIMEOUT:
                return check(code)

    def _give(self, function, flat, *arguments):
        with self._token_lock:
            self._token += 1
            token = self._token
        self._held[token] = flat
        code = function(self._handle, *arguments, flat.ctypes.data, flat.nbytes, token)
        if code != OK:
            del self._held[token]
            check(code)

    def gradient(self, tensor: int, flat: np.ndarray) -> None:
        """Gives a gradient without a copy; the array must not change until it is collected."""
        self._give(self._library.sluice_worker_gradient, flat, tensor)

    def row_gradient(self, tensor: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Gives the gradient of some rows of a matrix in the same way; `rows` is ascending."""
        self._give(self._library.sluice_worker_row_gradient, values, tensor, rows.ctypes.data,
                   rows.size)

    def no_gradient(self, tensor: int) -> None:
        """The loss does not depend on the parameter."""
        check(self._library.sluice_worker_no_gradient(self._handle, tensor))

    def buffer_change(self, tensor: int, flat: np.ndarray) -> None:
        """The change of a buffer, which is copied."""
        check(self._library.sluice_worker_buffer_change(self._handle, tensor, flat.ctypes.data,
                                                        flat.nbytes))

    def rows(self, tensor: int, rows: np.ndarray) -> None:
        """The rows that the samples of the work read."""
        check(self._library.sluice_worker_rows(self._handle, tensor, rows.ctypes.data, rows.size))

    def metric_state(self, metric: int, state: bytes) -> None:
        """What a metric has accumulated over the samples of the work."""
        check(self._library.sluice_worker_metric_state(self._handle, metric, state, len(state)))

    def metric_parts(self, metric: int) -> typing.List[bytes]:
        """The states of a metric over all samples that were evaluated, in their order."""
        count, memory, size = _size(), _address(), _size()
        check(self._library.sluice_worker_metric_parts(self._handle, count))
        states = []
        for part in range(count.value):
            check(self._library.sluice_worker_metric_part(self._handle, metric, part, memory, size))
            states.append(ctypes.string_at(memory, size.value))
        return states

    def metric_value(self, metric: int, value: float, note: str) -> None:
        """The value of a metric, and what the user should know of it."""
        check(self._library.sluice_worker_metric_value(self._handle, metric, value, _encode_text(note)))

    def collect(self) -> list:
        """Returns the objects whose memory the library no longer reads."""
        count, freed = _size(), []
        while True:
            check(self._library.sluice_worker_released(self._handle, self._room, len(self._room),
                                                       count))
            freed += [self._held.pop(token, None) for token in self._room[:count.value]]
            if count.value < len(self._room):
                return freed

    def cancelled(self) -> bool:
        """Whether the result of the current work is no longer needed."""
        answer = ctypes.c_int()
        check(self._library.sluice_worker_cancelled(self._handle, answer))
        return bool(answer.value)

    def done(self, result: typing.Optional[Result] = None) -> None:
        """Ends the current work."""
        check(self._library.sluice_worker_done(self._handle, result))

    def position(self) -> int:
        """The step of the current version."""
        step = _u64()
        check(self._library.sluice_worker_position(self._handle, step))
        return step.value

    def indices(self, first: int, count: int) -> typing.List[int]:
        """The samples at positions [first, first + count), once there was work."""
        indices = (_u64 * count)()
        check(self._library.sluice_worker_indices(self._handle, first, count, indices))
        return list(indices)

    def leave(self, reason: str, grace: float) -> None:
        """Leaves the job within `grace` seconds. Any thread."""
        check(self._library.sluice_worker_leave(self._handle, reason.encode(), grace))

    def fail(self, reason: str) -> None:
        """Fails the job. Any thread."""
        check(self._library.sluice_worker_fail(self._handle, reason.encode('utf-8', 'replace')))

    def stop_job(self, reason: str) -> None:
        """Asks the job to end training. Any thread."""
        check(self._library.sluice_worker_stop_job(self._handle,
                                                   reason.encode('utf-8', 'replace')))

    def save_job(self) -> None:
        """Asks the job for a checkpoint. Any thread."""
        check(self._library.sluice_worker_save_job(self._handle))

    def close(self) -> None:
        """Ends the worker; the arrays stay valid."""
        if not self._closed:
            self._closed = True
            check(self._library.sluice_worker_close(self._handle))
            self._held.clear()
