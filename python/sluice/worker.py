"""A job's worker: `join` registers with the job, `Worker` trains a model for it.

libsluice-worker.so implements the worker; this module connects the program's model and data to it.
"""

import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
import time
import typing

import numpy as np

from sluice import data as data_lib
from sluice import errors
from sluice import extras
from sluice import hooks
from sluice import kernels
from sluice import library
from sluice import metrics as metrics_lib
from sluice import processors
from sluice import samples as samples_lib
from sluice import security
from sluice import streams
from sluice import types
from sluice import wire

_EVALUATION_BATCH = 256
_DEFAULT_PORT = 29500  # services/transport/endpoint.h
_LEAVE_SECONDS = 10.0
_JOIN_SECONDS = 30.0


def join(address: typing.Optional[str] = None, job: typing.Optional[str] = None,
         index: typing.Optional[int] = None, timeout: typing.Optional[float] = None,
         tls_directory: typing.Optional[types.Path] = None, shared_memory: bool = True,
         secret_file: typing.Optional[types.Path] = None) -> 'Job':
    """Registers this process as a worker of a job and returns the Job.

    Missing arguments are taken from the environment that `sluice run` and the operator set:
    SLUICE_COORDINATOR (host:port), SLUICE_JOB (namespace/name/uid), SLUICE_WORKER_INDEX and
    SLUICE_SECRET_FILE (the file with the run's secret) or, if the job uses TLS,
    SLUICE_TLS_DIRECTORY (the directory of this worker's certificate). The job's name may be omitted:
    the coordinator reports it. Blocks until the job has answered, at most `timeout` seconds (0: without
    a limit); then raises JobNotFound. None: without a limit if SLUICE_COORDINATOR gives the address,
    because the process that set it ends this one together with the job; otherwise 30 s.

    `shared_memory`: exchange gradients and parameters with shards of this machine through shared
    memory, in plain text; False: through the socket, like everything else.
    """
    environment = os.environ
    if timeout is None:
        timeout = 0.0 if not address and environment.get('SLUICE_COORDINATOR') else _JOIN_SECONDS
    if getattr(multiprocessing.current_process(), '_inheriting', False):
        raise errors.UsageError(
            'a process of num_workers imports this program and would join the job as another worker: put '
            "the program into a function, and call that under `if __name__ == '__main__':`, or give "
            "worker.batches(..., multiprocessing_context='fork')")
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

    hooks.end_quietly()
    credentials = security.find(tls_directory, secret_file)
    options = library.options(address, timeout, credentials, shared_memory,
                              job or environment.get('SLUICE_JOB'), index,
                              environment.get('SLUICE_ADVERTISED_HOST'))
    try:
        with hooks.notice(_JOIN_SECONDS, f'no coordinator has answered at {address} yet; waiting'):
            handle = library.Handle(options)
    except errors.JobNotFound as error:
        limit = f' within {timeout:g} s' if timeout else ''
        raise errors.JobNotFound(
            f'no job answers at {address}{limit}, or another job does ({error}). The job has ended, has '
            'not started (increase timeout=), or its coordinator has another address. '
            '`sluice status` lists the jobs of this machine.') from None
    hooks.fail_on_exception(handle, index)
    return Job(handle, address, index, credentials)


class Job:
    """A job of which this process is a worker. `name`: namespace/name/uid; `address`: host:port of
    the coordinator; `index`: the number of this worker, from 0; `spec`: the coordinator's JobSpec
    (proto/job.proto)."""

    def __init__(self, handle: library.Handle, address: str, index: int,
                 credentials: typing.Any = None) -> None:
        self._handle = handle
        self._credentials = credentials
        self.name, self.spec = handle.job()
        if self.spec.training.bit_exact:
            # cuBLAS reads it when it is first used. Without it, results of cuBLAS may differ from run to run.
            os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
        kernels.check(self.spec)
        self.address = address
        self.index = index

    @property
    def seed(self) -> int:
        """training.seed of the manifest."""
        return self.spec.training.seed

    def progress(self) -> typing.Any:
        """The coordinator's current progress (JobProgress of proto/jobcontrol.proto)."""
        return library.progress(library.options(self.address, 5, self._credentials))

    def stop(self, reason: str) -> None:
        """Ends training at the next step that can be committed, with a last evaluation and a
        checkpoint: the job has succeeded, with this reason. The loops of all workers end."""
        self._handle.stop_job(reason)

    def save(self) -> None:
        """Saves a checkpoint of the next version that can be saved; training continues."""
        self._handle.save_job()

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
    _last: bool = dataclasses.field(repr=False, default=True)  # of its work
    _done: bool = dataclasses.field(repr=False, default=False)

    def __iter__(self) -> typing.Iterator[typing.Any]:
        return iter(self.data)

    def __len__(self) -> int:
        return self.size


class Worker:
    """Trains `module` for a job.

    module: a torch.nn.Module with loss_fn(output, target), the mean over the batch's samples, or
    objective(module, data) for batches that are not pairs; or a dict of numpy arrays with
    loss_fn(parameters, data) -> (mean loss, {name: gradient}).

    A loss that is not a mean over samples may be returned with its weight, which is what the mean was
    divided by: (mean loss, weight), or (mean loss, gradients, weight). With PyTorch's cross entropies
    (class weights, ignore_index) this is not needed.

    overlap: torch's gradients are sent while backward still runs, each as soon as it is final.

    rows: parameter name -> function of a batch's data that returns the rows of this matrix that the
    batch reads, as an array of any shape. Only these rows are pulled, and gradients of them
    (torch: torch.nn.Embedding(sparse=True); numpy: sluice.RowGradient) are pushed as rows.

    Outside of a step the module's parameters are a committed version of the job. Use the worker as
    a context manager: an exception inside fails the job with that exception's text, because the
    other workers would fail in the same way; leaving the loop early leaves the job.
    """

    def __init__(self, job: Job, module: typing.Any,
                 loss_fn: typing.Optional[typing.Callable[..., typing.Any]] = None, *,
                 objective: typing.Optional[typing.Callable[..., typing.Any]] = None,
                 collate: typing.Optional[typing.Callable[[list], typing.Any]] = None,
                 overlap: bool = True,
                 rows: typing.Optional[typing.Mapping[str, typing.Callable]] = None) -> None:
        self._job = job
        self._handle = job._handle
        self._collate = collate
        self._overlap = overlap
        self._ended = False
        self._batch = None   # the current one; _given_at: when the program got it
        self._given_at = 0.0
        self._result = None  # of the current work
        self._opened = False
        self._samples = None
        self._metrics = metrics_lib.Metrics({}, 0, None)  # of held-out samples
        self._views = {}    # address of the first tensor -> the model's view of all
        self._bound = None  # what the model uses
        self._read = None   # (indices, their content), read ahead
        self._uses_torch = not isinstance(module, dict)
        if not self._uses_torch:
            from sluice import numpy_model
            kernels.set_threads(_threads(job.spec))
            if job.spec.training.sync:
                raise errors.UsageError('training.sync: BatchNorm is for PyTorch modules, and the model is a dict of '
                                        'numpy arrays: remove `sync` from the manifest')
            self._model = numpy_model.NumpyModel(module, loss_fn)
        else:
            self._model = _torch_model(module, loss_fn, objective, job.spec, self._handle.sum)
        places = {spec.name: i for i, spec in enumerate(self._model.table.tensors)}
        missing = [name for name in rows or {} if name not in places]
        if missing:
            raise errors.UsageError(f"rows: there is no parameter '{missing[0]}'; there are "
                                    f'{", ".join(places)}')
        self._rows = {places[name]: (name, function) for name, function in (rows or {}).items()}
        self._model.skip(self._rows)

    # ---- starting and ending

    def __enter__(self) -> 'Worker':
        return self

    def __exit__(self, kind: typing.Any, error: typing.Any,
                 traceback: typing.Any) -> typing.Literal[False]:
        if self._handle.end() is None:
            if kind is None or issubclass(kind, (KeyboardInterrupt, SystemExit, GeneratorExit)):
                if self._opened and kind is not KeyboardInterrupt:
                    print(f'Worker {self._job.index} left its loop before the end of the job, so '
                          'it is started again. To end the job early, run `sluice stop '
                          f'{self._job.name.split("/")[1]}`; to end it as failed, raise an '
                          'exception.', file=sys.stderr)
                # Nothing is computed any more, so there is no need to wait.
                self._handle.leave('the program left its loop', 0)
            else:
                self._handle.fail(hooks.failure(kind, error, self._job.index))
        self._ended = True
        if self._samples is not None:
            self._samples.close()
        self._handle.close()
        if self._views:
            # The model gets memory of its own: the library's is freed with the last reference to it.
            self._model.bind(self._model.view([array.copy() for array in self._arrays()]))
            self._views.clear()
        return False

    @property
    def parameters(self) -> typing.Dict[str, typing.Any]:
        """Name -> tensor of the worker's current version. Read only."""
        return self._model.parameters()

    @property
    def step_number(self) -> int:
        """The step of the worker's current version."""
        return self._handle.position()

    # ---- the loop

    def batches(self, dataset: typing.Union[types.Dataset, typing.Iterable],
                evaluation: typing.Optional[types.Dataset] = None, *,
                metrics: typing.Optional[typing.Mapping[str, typing.Any]] = None,
                num_workers: int = 0, prefetch: int = 2,
                collate: typing.Optional[typing.Callable[[list], typing.Any]] = None,
                pin_memory: bool = False,
                multiprocessing_context: typing.Any = None) -> typing.Iterator[Batch]:
        """Yields the batches that the job assigns, until the job ends.

        `dataset` is a dataset of numbered samples (torch.utils.data.Dataset, a list,
        sluice.ArrayDataset, ...): the job decides which samples are trained on when, over epochs,
        shuffled, and each exactly once even if workers die. `evaluation` has held-out samples,
        which are evaluated between batches when the job requests it. Every batch must be given to
        `step` before the next is taken. Raises JobFailed when the job fails.

        `metrics`: name -> metric of the held-out samples, each of which counts once, over all workers: a
        function of (outputs, targets) of all samples that returns a number, sluice.Mean, or an object
        with update(outputs, targets), compute() and reset(), such as torchmetrics'.

        num_workers: processes of PyTorch's DataLoader that read the samples ahead, `prefetch` batches
        each; 0: samples are read here, when they are needed. They change no number: not the order, and
        not what `random`, `numpy.random` and `torch` return in the dataset, which are seeded for each
        sample. multiprocessing_context: how they are started, as in DataLoader.
        collate: in place of the Worker's. pin_memory: batches are in pinned memory.

        `dataset` may also be a stream (torch.utils.data.IterableDataset, or any object whose __iter__
        starts from the first sample each time): every worker reads all of it. With state_dict() and
        load_state_dict(), a restarted worker and a resumed job do not read it from its beginning.
        """
        loading = {'num_workers': num_workers, 'prefetch': prefetch, 'pin_memory': pin_memory,
                   'context': multiprocessing_context}
        if not self._open(dataset, evaluation, metrics, collate or self._collate, loading):
            self._ended = True
            return
        try:
            while True:
                self._model.check()
                work = self._handle.next()
                for memory in self._handle.collect():
                    self._model.recycle(memory)
                if work is None and self._bound is None:
                    break  # the job ended before this worker had a version
                self._bind()
                if work is None:
                    break
                if work.kind == library.EVALUATE:
                    self._evaluate(work)
                elif work.kind == library.METRICS:
                    self._compute_metrics()
                elif work.kind == library.ROWS:
                    self._name_rows(work)
                else:
                    yield from self._compute(work)
            if self._model.extras_changed:
                self._keep_extras()
        finally:
            self._samples.close()
            if self._handle.end() is not None:
                self._ended = True

    def step(self, batch: Batch, *, loss: typing.Any = None,
             gradients: typing.Optional[typing.Dict[str, typing.Any]] = None,
             weight: typing.Optional[float] = None) -> float:
        """Computes the batch's gradients and passes them to the job. Returns the mean loss.

        By default this runs forward and backward with the worker's loss_fn. `loss`: the mean loss
        of a forward pass that the program ran over the module; this runs backward only.
        `gradients`: name -> gradient of the mean loss over the batch, from any source. `weight`: with
        either, what the mean was divided by, if not by the number of samples.
        """
        if self._ended:
            self._raise_if_ended()

        if not isinstance(batch, Batch):
            raise errors.UsageError(
                f'step() was given a {type(batch).__name__}: it takes what worker.batches(dataset) '
                'yields, because the job decides which samples are trained on')
        if batch._done:
            raise errors.UsageError(
                f'the batch of step {batch.step} was already given to step(): each counts once')
        if batch is not self._batch:
            self._raise_if_ended()
            raise errors.UsageError(
                f'the batch of step {batch.step} is not the current one of worker.batches()')

        if weight is not None:
            weight = data_lib.checked_weight(weight)
        mean_of_parts = self._job.spec.training.aggregation == wire.TrainingSpec_MEAN
        early = self._give if batch._last and self._overlap else None
        mean = self._model.run(batch.data, batch.size if mean_of_parts else None, loss, gradients,
                               early, weight, self._handle.weight)
        batch._done = True

        self._result.loss_sum += mean * batch.size
        self._result.compute_seconds += time.monotonic() - self._given_at
        if batch._last:
            for tensor, flat in self._model.end(self._microbatches):
                self._give(tensor, flat)
            self._handle.done(self._result)
        return mean

    def _raise_if_ended(self):
        end = self._handle.end()
        if end is not None:
            raise end
        if self._ended:
            raise errors.JobEnded('the worker has ended; call step() only in the loop over '
                                  'worker.batches()')

    # ---- implementation

    def _open(self, dataset, evaluation, metrics, collate, loading):
        """Returns whether the job has work: False if it ended before this worker was ready."""
        if self._opened:
            raise errors.UsageError('worker.batches() goes through the whole job, all epochs; it '
                                    'is called once')
        if isinstance(self._handle.end(), errors.JobEnded):
            return False
        self._raise_if_ended()

        dataset, notes = self._checked_data(dataset, evaluation, loading)
        self._metrics = self._open_metrics(metrics, evaluation)
        self._opened = True
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, self._on_sigterm)

        self._keep_extras()
        model = self._model.describe(self._job.spec)
        self._handle.describe(**{**model, 'notes': [*model.get('notes', ()), *notes]},
                              **kernels.environment(self._job.spec, self._uses_torch))
        for i, spec in enumerate(self._model.table.tensors):
            self._handle.add_tensor(spec, self._model.initial(i), i in self._rows)
        digest = data_lib.digest_of(dataset, self._job.seed)
        if digest:
            self._handle.add_digest('the content of the samples', digest)
        for name in self._metrics.names:
            self._handle.add_metric(name)
        if loading['num_workers']:
            loading.update(address=self._job.address, index=self._job.index)
        self._samples = samples_lib.Samples(
            dataset, evaluation, collate, self._job.spec, self._handle.indices,
            loading if loading['num_workers'] else None)
        try:
            self._handle.open(len(dataset), 0 if evaluation is None else len(evaluation))
        except errors.JobEnded:
            self._samples.close()
            return False
        return True

    def _checked_data(self, dataset, evaluation, loading):
        """(the dataset or the Stream over it, what the user should know of it)"""
        notes = data_lib.check_loading(**loading)
        if streams.is_stream(dataset):
            streams.check(dataset, self._job.spec, loading['num_workers'])
            notes.append(streams.note(dataset, self._checkpoint_directory()))
            dataset = streams.Stream(dataset, 2 * self._job.spec.training.global_batch_size,
                                     self._checkpoint_directory())
        else:
            data_lib.check_dataset(dataset, 'the dataset')

        if evaluation is not None:
            data_lib.check_dataset(evaluation, 'the evaluation dataset')
        elif self._job.spec.data.HasField('evaluation'):
            print(f'Worker {self._job.index}: data.evaluation is set in the manifest, and '
                  'worker.batches() was given no evaluation dataset: nothing is evaluated. Give '
                  'worker.batches(dataset, evaluation=...), or remove data.evaluation.',
                  file=sys.stderr)
        return dataset, notes

    def _open_metrics(self, metrics, evaluation):
        if metrics and evaluation is None:
            raise errors.UsageError('metrics are of held-out samples: give worker.batches(dataset, evaluation=..., '
                                    'metrics=...)')
        return metrics_lib.Metrics(metrics or {}, 0 if evaluation is None else len(evaluation),
                                   sys.modules.get('torch') if self._uses_torch else None)

    def _keep_extras(self):
        extras.keep(self._checkpoint_directory(), self._job.index, *self._model.extras())

    def _checkpoint_directory(self):
        return os.environ.get('SLUICE_CHECKPOINT_DIRECTORY') or self._job.spec.checkpoint.directory

    def _on_sigterm(self, *unused):
        self._handle.leave('asked to stop by SIGTERM', _LEAVE_SECONDS)

    def _arrays(self):
        """Flat arrays over the version that is current, or is evaluated."""
        return [self._handle.array(i, spec.dtype)
                for i, spec in enumerate(self._model.table.tensors)]

    def _bind(self, evaluation=False):
        """Makes the model use the version that is current, or is evaluated."""
        address = self._handle.address(0)
        version = None if evaluation else (address, self._handle.position())
        if version is None or version != self._bound:
            if address not in self._views:
                self._views[address] = self._model.view(self._arrays())
            self._model.bind(self._views[address])
            self._bound = version
        else:
            self._model.mark()

    def _content(self, positions, indices):
        """The samples' data; what was read to name its rows is not read again."""
        ahead, self._read = self._read, None
        if ahead is not None and ahead[0] == positions:
            return ahead[1]
        return self._samples.read(positions, indices)

    def _compute(self, work):
        self._result = library.Result()
        self._microbatches = work.microbatches
        indices = work.indices[:work.samples]
        positions = work.positions[:work.samples]
        # With aggregation Sum, which adds the means of microbatches, one batch per microbatch.
        size = work.microbatch_size if work.sum_of_means else work.samples
        step, first = work.step, work.first_microbatch
        self._model.begin()
        self._model.seed(work.seed)

        for begin in range(0, len(indices), size):
            if self._handle.cancelled():
                break
            began = time.monotonic()
            some = indices[begin:begin + size]
            batch = self._batch = Batch(
                self._content(positions[begin:begin + size], some), step, len(some), some,
                first + begin // work.microbatch_size, begin + size >= len(indices))
            self._given_at = time.monotonic()
            self._result.data_seconds += self._given_at - began
            yield batch

            if not batch._done:
                raise errors.UsageError(
                    f'the batch of step {step} was not given to worker.step(): every '
                    'batch that worker.batches() yields must be, or its samples would be lost')
        else:
            return

        self._model.end(1)
        self._handle.done()

    def _give(self, tensor, value):
        """Passes a gradient, or the change of a buffer, to the library. Any thread."""
        if isinstance(value, data_lib.RowGradient):
            if tensor in self._rows:
                self._handle.row_gradient(tensor, value.rows, value.values)
                return
            value = value.dense(self._model.table.tensors[tensor].shape)
        if self._model.table.tensors[tensor].kind != wire.PARAMETER:
            if value is not None:
                self._handle.buffer_change(tensor, value)
        elif value is None:
            self._handle.no_gradient(tensor)
        else:
            self._handle.gradient(tensor, value)

    def _name_rows(self, work):
        positions = work.positions[:work.samples]
        content = self._samples.read(positions, work.indices[:work.samples])
        self._read = (positions, content)
        for tensor, (name, function) in self._rows.items():
            self._handle.rows(tensor, data_lib.row_numbers(name, function(content)))
        self._handle.done()

    def _evaluate(self, work):
        result = library.Result()
        indices = work.indices[:work.samples]
        self._bind(evaluation=True)
        self._metrics.begin()
        total = weights = 0.0
        weighted = False
        for count, content in self._samples.evaluate(indices, _EVALUATION_BATCH):
            evaluated = self._model.evaluate(content)
            weighted |= evaluated.weight is not None
            weight = count if evaluated.weight is None else evaluated.weight
            total += evaluated.loss * weight
            weights += weight
            result.correct += evaluated.correct or 0
            result.counted |= evaluated.correct is not None
            self._metrics.update(evaluated.outputs, evaluated.targets, count)
        if weighted:
            self._handle.weight(weights)
        result.loss_sum = total / weights * len(indices) if weights else 0.0
        if self._model.extras_changed:
            self._keep_extras()
        for place, state in enumerate(self._metrics.states()):
            self._handle.metric_state(place, state)
        self._handle.done(result)
        self._bind()

    def _compute_metrics(self):
        for place in range(len(self._metrics.names)):
            self._handle.metric_value(place, *self._metrics.value(place, self._handle.metric_parts))
        self._handle.done()


def _torch_model(module, loss_fn, objective, spec, give_sum):
    try:
        from sluice import torch_model
        from sluice import torch_sync
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

    threads = _threads(spec)
    if threads:
        torch_model.set_threads(threads)
    kernels.set_threads(threads)
    kernels.fix_torch(spec)
    if spec.training.bit_exact:
        torch_model.choose_deterministic_algorithms()
    # The C++ workers of other jobs do not weigh.
    divided = (spec.training.mode == wire.SYNCHRONOUS and
               spec.training.aggregation == wire.TrainingSpec_MEAN and
               spec.model.type == wire.ModelSpec_CUSTOM)
    sums = torch_sync.Sums(give_sum) if spec.training.sync else None
    return torch_model.TorchModel(module, loss_fn, objective, divided, sums)


def _threads(spec):
    """Of this worker; 0: the library's choice."""
    threads = spec.training.threads or int(os.environ.get('SLUICE_THREADS', '0'))
    return threads or (1 if spec.training.bit_exact else processors.quota())


def _needs_loss(module, data):
    raise errors.UsageError('give the worker a loss_fn(output, target) or an objective(module, '
                            'data), or every step its loss')
