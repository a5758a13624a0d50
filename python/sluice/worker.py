"""A job's worker: `join` registers with the job, `Worker` trains a model for it."""

import dataclasses
import os
import signal
import sys
import threading
import time
import typing

from sluice import data as data_lib
from sluice import errors
from sluice import extras
from sluice import runtime as runtime_lib
from sluice.protocol import actions
from sluice.protocol import core as core_lib
from sluice.protocol import sequence
from sluice.protocol import wire
from sluice import security
from sluice import transport
from sluice import types

_EVALUATION_BATCH = 256
_DEFAULT_PORT = 29500  # services/transport/endpoint.h


def join(address: typing.Optional[str] = None, job: typing.Optional[str] = None,
         index: typing.Optional[int] = None, timeout: float = 30.0,
         tls_directory: typing.Optional[types.Path] = None, shared_memory: bool = True,
         secret_file: typing.Optional[types.Path] = None) -> 'Job':
    """Registers this process as a worker of a job and returns the Job.

    Missing arguments are taken from the environment that `sluice run` and the operator set:
    SLUICE_COORDINATOR (host:port), SLUICE_JOB (namespace/name/uid), SLUICE_WORKER_INDEX and
    SLUICE_SECRET_FILE (the file with the run's secret) or, if the job uses TLS,
    SLUICE_TLS_DIRECTORY (the directory of this worker's certificate). The job's name may be omitted:
    the coordinator reports it. Blocks until the job has answered, at most `timeout` seconds; then
    raises JobNotFound.

    `shared_memory`: exchange gradients and parameters with shards of this machine through shared
    memory, in plain text; False: through the socket, like everything else.
    """
    environment = os.environ
    address = address or environment.get('SLUICE_COORDINATOR')
    if not address and environment.get('MASTER_ADDR'):
        address = f'{environment["MASTER_ADDR"]}:{environment.get("MASTER_PORT", _DEFAULT_PORT)}'

    if not address:
        raise errors.JobNotFound(
            'there is no job to join: SLUICE_COORDINATOR is not set. Start this program by '
            '`sluice run` (model: {type: Custom}, worker: {command: [python3, ...]}), or call '
            'sluice.join("host:port") with the address of a running job\'s coordinator')
    if ':' not in address:
        address = f'{address}:{_DEFAULT_PORT}'

    if index is None:
        text = environment.get('SLUICE_WORKER_INDEX', '0')
        if not text.isdecimal():
            raise errors.UsageError(f"SLUICE_WORKER_INDEX is '{text}': it must be this worker's "
                                    'number, from 0; or give sluice.join(index=...)')
        index = int(text)

    tls = security.find(tls_directory, secret_file)
    job = job or environment.get('SLUICE_JOB') or _ask_job_name(address, timeout, tls)
    runtime = runtime_lib.Runtime(address, job, index, tls, shared_memory)
    runtime.start()
    runtime.wait_for_job(timeout)
    return Job(runtime)


def _ask_job_name(address, timeout, tls):
    import grpc
    deadline = time.monotonic() + timeout
    with transport.JobControl(address, tls=tls) as control:
        while True:
            try:
                name = control.progress().job
                if name:
                    return name
                raise errors.VersionMismatch(
                    f'the coordinator at {address} is too old to report its job; give '
                    'sluice.join(address, job="namespace/name/uid")')
            except grpc.RpcError as error:
                if time.monotonic() >= deadline:
                    raise errors.JobNotFound(
                        f'no job answers at {address} within {timeout:g} s '
                        f'({transport.describe(error)}). It has ended, has not started (increase '
                        'timeout=), or its coordinator has another address') from None
                time.sleep(0.2)


class Job:
    """A job of which this process is a worker."""

    def __init__(self, runtime: runtime_lib.Runtime) -> None:
        self._runtime = runtime

    @property
    def name(self) -> str:
        """namespace/name/uid"""
        return self._runtime.job_name

    @property
    def address(self) -> str:
        """host:port of the coordinator."""
        return self._runtime.address

    @property
    def index(self) -> int:
        """The number of this worker, from 0."""
        return self._runtime.index

    @property
    def spec(self) -> typing.Any:
        """The coordinator's JobSpec (proto/job.proto)."""
        return self._runtime.job

    @property
    def seed(self) -> int:
        """training.seed of the manifest."""
        return self.spec.training.seed

    def progress(self) -> typing.Any:
        """The coordinator's current progress (JobProgress of proto/jobcontrol.proto)."""
        with transport.JobControl(self.address, tls=self._runtime.tls) as control:
            return control.progress()

    def __repr__(self):
        return f'<sluice.Job {self.name} at {self.address}, worker {self.index}>'


@dataclasses.dataclass
class Batch:
    """Samples that the job assigned to this worker. It unpacks like its data."""
    data: typing.Any
    step: int         # synchronous: the job's step; asynchronous: position of the first sample
    size: int         # samples
    indices: list     # of the samples in the dataset
    microbatch: int   # first microbatch within the step
    _piece: typing.Any = dataclasses.field(repr=False, default=None)

    def __iter__(self) -> typing.Iterator[typing.Any]:
        return iter(self.data)

    def __len__(self) -> int:
        return self.size


@dataclasses.dataclass
class _Piece:
    """Part of a Work that is computed as one batch."""
    work: typing.Any
    begin: int
    end: int
    first_microbatch: int
    data_seconds: float = 0.0
    started: float = 0.0
    done: bool = False


class _Outbox:
    """Collects gradients of the backward pass and passes them on in batches worth a message."""

    _BYTES = 1 << 18

    def __init__(self, runtime, work):
        self._runtime = runtime
        self._work = work
        self._lock = threading.Lock()  # on several devices, each has a backward thread
        self._tensors = []
        self._bytes = 0

    def put(self, tensor, gradient):
        with self._lock:
            self._tensors.append((tensor, gradient))
            self._bytes += gradient.nbytes if gradient is not None else 0
            if self._bytes < self._BYTES:
                return
        self._runtime.give_tensors(self._work, self.take())

    def take(self):
        with self._lock:
            tensors, self._tensors, self._bytes = self._tensors, [], 0
            return tensors


class Worker:
    """Trains `module` for a job.

    module: a torch.nn.Module with loss_fn(output, target), the mean over the batch's samples, or
    objective(module, data) for batches that are not pairs; or a dict of numpy arrays with
    loss_fn(parameters, data) -> (mean loss, {name: gradient}).

    overlap: torch's gradients are sent while backward still runs, each as soon as it is final.

    Outside of a step the module's parameters are a committed version of the job. Use the worker as
    a context manager: an exception inside fails the job with that exception's text, because the
    other workers would fail in the same way; leaving the loop early leaves the job.
    """

    def __init__(self, job: Job, module: typing.Any,
                 loss_fn: typing.Optional[typing.Callable[..., typing.Any]] = None, *,
                 objective: typing.Optional[typing.Callable[..., typing.Any]] = None,
                 collate: typing.Optional[typing.Callable[[list], typing.Any]] = None,
                 overlap: bool = True) -> None:
        self._job = job
        self._runtime = job._runtime
        self._collate = collate
        self._overlap = overlap
        self._ended = False
        self._piece = None
        self._result = None
        self._opened = False
        self._training = None
        self._evaluation = None
        self._order = None
        self._walked = None
        if isinstance(module, dict):
            from sluice import numpy_model
            self._model = numpy_model.NumpyModel(module, loss_fn)
        else:
            self._model = _torch_model(module, loss_fn, objective, job.spec)

    # ---- starting and ending

    def __enter__(self) -> 'Worker':
        return self

    def __exit__(self, kind: typing.Any, error: typing.Any,
                 traceback: typing.Any) -> typing.Literal[False]:
        if self._runtime.ended is None:
            if kind is None or issubclass(kind, (KeyboardInterrupt, SystemExit, GeneratorExit)):
                if self._opened and kind is not KeyboardInterrupt:
                    print(f'Worker {self._job.index} left its loop before the end of the job, so '
                          'it is started again. To end the job early, run `sluice stop '
                          f'{self._job.name.split("/")[1]}`; to end it as failed, raise an '
                          'exception.', file=sys.stderr)
                # Nothing is computed any more, so there is no need to wait.
                self._runtime.leave('the program left its loop', 0)
            else:
                self._runtime.fail(f'{kind.__name__} in worker {self._job.index}: {error}')
        self._ended = True
        self._runtime.close()
        return False

    @property
    def parameters(self) -> typing.Dict[str, typing.Any]:
        """Name -> tensor of the worker's current version. Read only."""
        return self._model.parameters()

    @property
    def step_number(self) -> int:
        """The step of the worker's current version."""
        return self._runtime.core.step

    # ---- the loop

    def batches(self, dataset: types.Dataset,
                evaluation: typing.Optional[types.Dataset] = None) -> typing.Iterator[Batch]:
        """Yields the batches that the job assigns, until the job ends.

        `dataset` is a dataset of numbered samples (torch.utils.data.Dataset, a list,
        sluice.ArrayDataset, ...): the job decides which samples are trained on when, over epochs,
        shuffled, and each exactly once even if workers die. `evaluation` has held-out samples,
        which are evaluated between batches when the job requests it. Every batch must be given to
        `step` before the next is taken. Raises JobFailed when the job fails.
        """
        self._open(dataset, evaluation)
        try:
            while True:
                work = self._runtime.next_work()
                self._model.bind(self._runtime.buffers.get(actions.Buffer.CURRENT))
                if work is None:
                    break
                if isinstance(work.request, actions.EvaluateSamples):
                    self._evaluate(work)
                else:
                    yield from self._compute(work)
        finally:
            if self._runtime.ended is not None:
                self._ended = True

    def step(self, batch: Batch, *, loss: typing.Any = None,
             gradients: typing.Optional[typing.Dict[str, typing.Any]] = None) -> float:
        """Computes the batch's gradients and passes them to the job. Returns the mean loss.

        By default this runs forward and backward with the worker's loss_fn. `loss`: the mean loss
        of a forward pass that the program ran over the module; this runs backward only.
        `gradients`: name -> gradient of the mean loss over the batch, from any source.
        """
        if self._ended:
            self._raise_if_ended()

        piece = batch._piece if isinstance(batch, Batch) else None
        if piece is None:
            raise errors.UsageError(
                f'step() was given a {type(batch).__name__}: it takes what worker.batches(dataset) '
                'yields, for the job decides which samples are trained on')
        if piece.done:
            raise errors.UsageError(
                f'the batch of step {batch.step} was already given to step(): each counts once')
        if self._ended or piece is not self._piece:
            self._raise_if_ended()
            raise errors.UsageError(
                f'the batch of step {batch.step} is not the current one of worker.batches()')

        spec = self._job.spec.training
        scale = float(batch.size) if spec.aggregation == wire.TrainingSpec_MEAN else 1.0
        is_last = piece.end == piece.work.request.end
        outbox = _Outbox(self._runtime, piece.work) if is_last and self._overlap else None

        mean = self._model.run(batch.data, scale, loss, gradients, outbox and outbox.put)
        piece.done = True

        result = self._result
        result.samples += batch.size
        result.loss_sum += mean * batch.size
        result.compute_seconds += time.monotonic() - piece.started
        if is_last:
            self._deliver(piece.work, outbox)
        return mean

    def _raise_if_ended(self):
        if self._runtime.ended is not None:
            self._runtime.raise_end()
        if self._ended:
            raise errors.JobEnded('the worker has ended; call step() only in the loop over '
                                  'worker.batches()')

    # ---- implementation

    def _open(self, dataset, evaluation):
        if self._opened:
            raise errors.UsageError('worker.batches() goes through the whole job, all epochs; it '
                                    'is called once')
        if self._ended or self._runtime.ended is not None:
            self._raise_if_ended()

        data_lib.check_dataset(dataset, 'the dataset')
        if evaluation is not None:
            data_lib.check_dataset(evaluation, 'the evaluation dataset')
        elif self._job.spec.data.HasField('evaluation'):
            print(f'Worker {self._job.index}: data.evaluation is set in the manifest, and '
                  'worker.batches() was given no evaluation dataset: nothing is evaluated. Give '
                  'worker.batches(dataset, evaluation=...), or remove data.evaluation.',
                  file=sys.stderr)

        self._opened = True
        self._training = dataset
        self._evaluation = evaluation
        data = self._job.spec.data

        # PerWorker: this worker's own order, by its index, from its current position.
        self._walked = 0 if data.partitioning == wire.DataSpec_PER_WORKER else None
        seed = self._job.seed
        if self._walked is not None:
            seed = sequence.splitmix64_at(seed, self._job.index)
        self._order = sequence.SampleOrder(len(dataset), seed, shuffle=not data.no_shuffle)

        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._on_sigterm)

        extras.keep(os.environ.get('SLUICE_CHECKPOINT_DIRECTORY') or
                    self._job.spec.checkpoint.directory, self._job.index, *self._model.extras())
        self._runtime.open_model(
            self._model.table, len(dataset), 0 if evaluation is None else len(evaluation),
            self._model.initial, self._model.allocate)

    def _on_sigterm(self, *unused):
        # On another thread: the signal may interrupt this one while it holds the lock.
        threading.Thread(target=self._runtime.leave, args=('asked to stop by SIGTERM',),
                         daemon=True).start()

    def _pieces(self, work):
        """One batch; with aggregation Sum, which adds the means of microbatches, one per
        microbatch."""
        request = work.request
        training = self._job.spec.training
        size = request.end - request.begin
        if training.aggregation == wire.TrainingSpec_SUM:
            size = request.microbatch_size
        for begin in range(request.begin, request.end, size):
            yield _Piece(work, begin, min(begin + size, request.end),
                         request.first_microbatch +
                         (begin - request.begin) // request.microbatch_size)

    def _indices_of(self, piece):
        if self._walked is None:
            return self._order.indices_of(piece.begin, piece.end)
        begin = self._walked
        self._walked += piece.end - piece.begin
        return self._order.indices_of(begin, self._walked)

    def _compute(self, work):
        request = work.request
        self._result = core_lib.ComputeResult()
        self._delay(work)
        self._model.begin()
        self._model.seed(self._job.seed, request.step, request.first_microbatch)

        for piece in self._pieces(work):
            if work.cancelled:
                break
            began = time.monotonic()
            indices = self._indices_of(piece)
            content = data_lib.read(self._training, indices, self._collate)
            piece.started = time.monotonic()
            self._result.data_seconds += piece.started - began
            self._piece = piece
            yield Batch(content, request.step, piece.end - piece.begin, indices,
                        piece.first_microbatch, piece)

            if not piece.done:
                raise errors.UsageError(
                    f'the batch of step {request.step} was not given to worker.step(): every '
                    'batch that worker.batches() yields must be, or its samples would be lost')
        else:
            return

        # The core no longer needs the result and ignores an answer without gradients.
        self._model.end(1)
        self._runtime.finish_compute(work, core_lib.ComputeResult(cancelled=True))

    def _delay(self, work):
        """The job's configured delay of each step, for demonstrations."""
        until = time.monotonic() + self._job.spec.training.step_delay_seconds
        while time.monotonic() < until and not work.cancelled:
            time.sleep(min(0.02, max(0.0, until - time.monotonic())))

    def _deliver(self, work, outbox):
        request = work.request
        samples = request.end - request.begin
        microbatches = -(-samples // max(1, request.microbatch_size))
        tensors = self._model.end(microbatches)
        self._runtime.give_tensors(work, (outbox.take() if outbox is not None else []) + tensors)
        self._runtime.finish_compute(work, self._result)

    def _evaluate(self, work):
        request = work.request
        result = core_lib.ComputeResult()
        if self._evaluation is None or request.end > len(self._evaluation):
            have = 0 if self._evaluation is None else len(self._evaluation)
            result.error = (f'held-out samples up to {request.end} were requested, '
                            f'but there are only {have}')
            self._runtime.finish_evaluation(work, result)
            return

        self._model.bind(self._runtime.buffers.get(request.buffer))
        try:
            for begin in range(request.begin, request.end, _EVALUATION_BATCH):
                indices = list(range(begin, min(begin + _EVALUATION_BATCH, request.end)))
                content = data_lib.read(self._evaluation, indices, self._collate)
                loss, correct = self._model.evaluate(content)
                result.samples += len(indices)
                result.loss_sum += loss * len(indices)
                result.correct += correct or 0
        finally:
            self._model.bind(self._runtime.buffers.get(actions.Buffer.CURRENT))

        self._runtime.finish_evaluation(work, result)


def _torch_model(module, loss_fn, objective, spec):
    try:
        from sluice import torch_model
    except ImportError as error:
        raise errors.UsageError(
            f'the model is a {type(module).__name__}, and PyTorch cannot be imported ({error}); '
            'install torch, or give a dict of numpy arrays') from error

    import torch
    if not isinstance(module, torch.nn.Module):
        raise errors.UsageError(f'the model is a {type(module).__name__}: give a torch.nn.Module '
                                'or a dict of numpy arrays')

    if loss_fn is None and objective is None:
        objective = _needs_loss

    threads = spec.training.threads or int(os.environ.get('SLUICE_THREADS', '0'))
    if not threads and spec.training.bit_exact:
        threads = 1
    if threads:
        torch_model.set_threads(threads)
    if spec.training.bit_exact:
        torch_model.choose_deterministic_algorithms()
    return torch_model.TorchModel(module, loss_fn, objective)


def _needs_loss(module, data):
    raise errors.UsageError('give the worker a loss_fn(output, target) or an objective(module, '
                            'data), or every step its loss')
