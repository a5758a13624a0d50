"""Lightning: `Trainer(strategy=sluice.lightning.Strategy(sluice.join()))`. See docs/adapters.md.

Lightning runs its loops, callbacks and loggers; the job decides which samples are trained on, and its shards update.
"""

import itertools
import time
import typing

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer import call

from sluice import adapter_checks as checks
from sluice import adapters
from sluice import worker as worker_lib

_VALIDATION = ('on_validation_start', 'on_validation_epoch_start', 'on_validation_epoch_end', 'on_validation_end')


class Strategy(pl.strategies.SingleDeviceStrategy):
    """Trains a LightningModule as one of the job's workers. `monitor`: the name under which callbacks find the loss of
    the job's evaluations; an accuracy and the job's other metrics have their own names."""

    def __init__(self, job: worker_lib.Job, device: typing.Any = 'cpu', monitor: str = 'val_loss') -> None:
        super().__init__(device=device)
        # The first worker logs, and writes files.
        self.global_rank = pl.utilities.rank_zero_only.rank = job.index
        self._job, self._monitor = job, monitor
        self._worker = self._batches = self._batch = self._next = self._held_out = None
        self._evaluations, self.over = adapters.Evaluations(job), False

    @property
    def is_global_zero(self) -> bool:
        return self._job.index == 0

    def setup_environment(self) -> None:
        super().setup_environment()
        trainer = self.lightning_module.trainer
        if trainer.fit_loop.epoch_loop.val_loop._data_source.is_defined():
            trainer.check_val_every_n_epoch = None  # callbacks look at evaluations, not at ends of epochs

    def setup(self, trainer: pl.Trainer) -> None:
        checks.check_lightning(self._job, trainer, self.lightning_module)
        self._trainer = trainer
        source = trainer.fit_loop.epoch_loop.val_loop._data_source
        if source.is_defined() and trainer.limit_val_batches:
            self._held_out = checks.held_out(source.dataloader())
        # The job evaluates, and ends.
        trainer.limit_val_batches = trainer.num_sanity_val_steps = 0
        trainer.fit_loop.max_epochs = trainer.fit_loop.epoch_loop.max_steps = -1
        trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
        trainer.gradient_clip_val = None
        trainer.callbacks.insert(0, _Follow(self))
        super().setup(trainer)
        checks.check_lightning_optimizers(self._job, self.lightning_module, self.optimizers, self.lr_scheduler_configs)
        self.lr_scheduler_configs = []
        self.optimizers[0].zero_grad = lambda set_to_none=True: None  # the worker does that

    def process_dataloader(self, dataloader: typing.Any) -> typing.Any:
        checks.refuse((self._worker is not None, 'several train_dataloaders: a job has one set of training samples'))
        checks.check_data(getattr(dataloader, 'dataset', dataloader))
        self.each, self._total = adapters.length(self._job, len(dataloader.dataset), 'Lightning')
        self._worker = worker_lib.Worker(self._job, self.lightning_module, objective=self._objective, collate=dataloader.collate_fn)
        self._batches = self._worker.batches(dataloader.dataset, evaluation=self._held_out)
        return _Loader(self)

    def epoch(self) -> typing.Iterator[typing.Any]:
        """The data of the batches of one epoch."""
        loop = self._trainer.fit_loop
        while True:
            batch, self._next = self._next or next(self._batches, None), None
            self.look()
            if batch is None:
                self.over = self._trainer.should_stop = True
                return
            if loop.epoch_progress.current.completed == 0 and batch.step >= self.each:  # a job that was resumed
                loop.epoch_progress.current.completed = loop.epoch_progress.current.processed = batch.step // self.each
            if batch.step >= (self._trainer.current_epoch + 1) * self.each:
                self._next = batch
                return
            self._batch = batch
            # Lightning counts batches. A step may come again after the death of a worker, or be the first one here.
            loop._data_fetcher.fetched = max(batch.step - self._trainer.current_epoch * self.each, 0)
            loop.epoch_loop.batch_progress.current.ready = loop._data_fetcher.fetched
            loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = batch.step
            loop.epoch_loop._batches_that_stepped = batch.step
            yield batch.data

    def backward(self, closure_loss: typing.Any, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        loss = self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        self._worker.step(self._batch, loss=loss)
        return self.precision_plugin.post_backward(loss, self.lightning_module)

    def optimizer_step(self, optimizer: typing.Any, closure: typing.Callable, *args: typing.Any, **kw: typing.Any) -> typing.Any:
        loss = closure()
        checks.refuse((not self._batch._done, 'training_step returned None: a job counts each sample, so none can be left out'))
        return loss

    def _objective(self, module, data):
        """The loss of a batch outside of Lightning's loop: of held-out samples, and of samples of workers that were lost."""
        logged = []
        module.log = lambda name, value, *args, **kwargs: logged.append(value)
        module.log_dict = lambda values, *args, **kwargs: logged.extend(values.values())

        def compute():
            with self.precision_plugin.forward_context():
                loss = module.training_step(data, 0) if module.training else module.validation_step(data, 0)
            loss = loss.get('loss') if isinstance(loss, dict) else loss
            checks.refuse((loss is None and not logged, 'validation_step returned and logged nothing: return its loss'))
            return logged[0] if loss is None else loss

        try:
            return compute() if module.training else adapters.held_out_loss(compute, data)
        finally:
            del module.log, module.log_dict

    def look(self, at_once: bool = False) -> None:
        """Gives a new evaluation of the job to callbacks and loggers, as Lightning does after a validation."""
        found = self._evaluations.new(time.monotonic(), at_once)
        if found is None:
            return
        step = found.pop('step')
        values = {self._monitor if name == 'loss' else name: torch.tensor(value) for name, value in found.items()}
        self._trainer.callback_metrics.update(values)
        for logger in self._trainer.loggers:
            logger.log_metrics({name: float(value) for name, value in values.items()}, step)
        for hook in _VALIDATION:
            call._call_callback_hooks(self._trainer, hook)
            call._call_lightning_module_hook(self._trainer, hook)

    def last(self) -> bool:
        return self.over or self._batch is not None and self._batch.step + 1 >= self._total

    def drain(self) -> None:
        """After the last step: evaluates, and computes for workers that were lost, until the job ends."""
        if self.over:
            return
        if not self.last():
            adapters.stop(self._job, 'a callback of Lightning has set trainer.should_stop')
        for batch in itertools.chain([self._next] if self._next else [], self._batches):
            self._worker.step(batch)
        self.over = True
        self.look(at_once=True)

    def on_exception(self, exception: BaseException) -> None:
        self._leave(type(exception), exception)

    def teardown(self) -> None:
        self._leave(None, None)
        super().teardown()

    def _leave(self, kind, error):
        if self._worker is not None:
            self._worker.__exit__(kind, error, None)
        self._worker = None


class _Loader:

    def __init__(self, strategy):
        self._strategy = strategy

    def __iter__(self):
        return self._strategy.epoch()

    def __len__(self):
        return self._strategy.each


class _Follow(pl.Callback):
    """Ends Lightning's loop with the job."""

    def __init__(self, strategy):
        self._strategy = strategy

    def on_train_batch_end(self, trainer, *unused):
        trainer.should_stop = trainer.should_stop or self._strategy.last()

    def on_train_epoch_end(self, trainer, module):
        if self._strategy.last():
            self._strategy.drain()

    def on_train_end(self, trainer, module):
        self._strategy.drain()
