"""The HuggingFace Trainer: `sluice.huggingface.train(trainer)` instead of `trainer.train()`. See docs/adapters.md.

The Trainer's model, datasets, collator, loss and callbacks; the job's samples, schedule, optimizer and checkpoints.
"""

import time
import typing

import torch
import transformers
from transformers.trainer_pt_utils import nested_numpify
from transformers.trainer_utils import EvalPrediction, TrainOutput

from sluice import adapter_checks as checks
from sluice import adapters
from sluice import worker as worker_lib

_TRIED = 64  # held-out samples


def train(trainer: transformers.Trainer, job: typing.Optional[worker_lib.Job] = None) -> TrainOutput:
    """Trains the Trainer's model as one of the job's workers, until the job ends."""
    job = job or worker_lib.join()
    checks.check_trainer(job, trainer)
    trainer.create_optimizer()
    schedule = type(trainer.lr_scheduler).__name__ if trainer.lr_scheduler else str(trainer.args.lr_scheduler_type.value)
    checks.check_optimizer(job, trainer.model, trainer.optimizer, None if schedule == 'constant' else schedule, 'the Trainer')
    loader = trainer.get_train_dataloader()
    checks.check_data(loader.dataset)
    held_out = trainer.get_eval_dataloader().dataset if trainer.eval_dataset is not None else None
    run = _Run(job, trainer, len(loader.dataset))
    evaluates = trainer.compute_metrics and held_out is not None and len(held_out) > 0
    metrics = _metrics(trainer, held_out, loader.collate_fn) if evaluates else None
    trainer.model.train()
    with worker_lib.Worker(job, trainer.model, objective=_Loss(job, trainer), collate=loader.collate_fn) as worker:
        run.begin(loader)
        for batch in worker.batches(loader.dataset, evaluation=held_out, metrics=metrics):
            run.before(batch)
            run.after(batch, worker.step(batch))
        return run.end()


def _predict(trainer, inputs):
    """(predictions, labels) of a batch, as Trainer.evaluate has them."""
    _, logits, labels = trainer.prediction_step(trainer.model, inputs, False)
    if trainer.preprocess_logits_for_metrics is not None:
        logits = trainer.preprocess_logits_for_metrics(logits, labels)
    checks.refuse((labels is None, f'compute_metrics needs labels: the held-out samples have none of {trainer.label_names}'))
    return logits, labels


def _metrics(trainer, held_out, collate):
    """The job's metrics of compute_metrics. Their names are those that it gives for some held-out samples."""
    def compute(predictions, labels):
        found = trainer.compute_metrics(EvalPrediction(nested_numpify(predictions), nested_numpify(labels)))
        return {name if name.startswith('eval_') else f'eval_{name}': value for name, value in found.items()}

    some = [held_out[i] for i in range(0, len(held_out), -(-len(held_out) // _TRIED))]
    trainer.model.eval()
    return adapters.several('compute_metrics', compute, compute(*_predict(trainer, collate(some))), padding=-100)


class _Loss:
    """The Trainer's loss as the job needs it: a mean, and what it was divided by."""

    def __init__(self, job, trainer):
        self._job, self._trainer = job, trainer
        self._uses_items = None  # whether the loss is divided by num_items_in_batch; None: not measured

    def __call__(self, model, inputs):
        found = self._mean(model, inputs)
        if model.training or self._trainer.compute_metrics is None:
            return found
        mean, weight = found if isinstance(found, tuple) else (found, None)
        outputs, targets = _predict(self._trainer, inputs)
        return {'loss': mean, 'weight': weight, 'outputs': outputs, 'targets': targets}

    def _mean(self, model, inputs):
        trainer = self._trainer
        inputs = trainer._prepare_inputs(inputs)
        items = trainer._get_num_items_in_batch([inputs], trainer.args.device)
        if items is not None and self._uses_items is None:
            self._measure(model, inputs, max(int(items), 1))
        if not self._uses_items:
            items = None
        elif items == 0:
            return sum(each.sum() for each in model.parameters()) * 0.0, 0.0  # no label, no gradient
        if not model.training:
            return adapters.held_out_loss(lambda: self._compute(model, inputs, items), inputs)
        return self._compute(model, inputs, items)

    def _compute(self, model, inputs, items):
        with self._trainer.compute_loss_context_manager():
            loss = self._trainer.compute_loss(model, dict(inputs), num_items_in_batch=items)
        return loss if items is None else (loss, float(items))

    def _measure(self, model, inputs, items):
        """Many models take num_items_in_batch and do not use it; then theirs is a mean already."""
        training = model.training
        model.eval()
        with torch.no_grad():
            once, twice = (float(self._compute(model, inputs, torch.tensor(n))[0]) for n in (items, 2 * items))
        model.train(training)
        self._uses_items = once != twice
        if not self._uses_items:
            self._trainer.model_accepts_loss_kwargs = False
        adapters.say(self._job, f'the loss of {type(model).__name__} is ' + (
            'the sum over num_items_in_batch' if self._uses_items else
            'a mean that num_items_in_batch does not change, so accepts_loss_kwargs is False'))


class _Run:
    """The Trainer's state, callbacks and logs."""

    def __init__(self, job, trainer, samples):
        self._job, self._trainer = job, trainer
        self._each, self._total = adapters.length(job, samples, 'the Trainer')
        self._evaluations = adapters.Evaluations(job)
        self._epoch, self._losses, self._all, self._stopped = None, [], [], False

    def _call(self, event, *arguments):
        trainer = self._trainer
        trainer.control = getattr(trainer.callback_handler, event)(trainer.args, trainer.state, trainer.control, *arguments)

    def begin(self, loader):
        trainer, state = self._trainer, self._trainer.state
        state.max_steps, state.num_train_epochs = self._total, -(-self._total // self._each)
        state.is_world_process_zero = state.is_local_process_zero = self._job.index == 0
        state.compute_steps(trainer.args, self._total)
        trainer.callback_handler.train_dataloader = loader
        trainer.callback_handler.optimizer = trainer.optimizer
        self._call('on_train_begin')

    def before(self, batch):
        self._look()
        epoch = batch.step // self._each
        if epoch != self._epoch:
            if self._epoch is not None:
                self._call('on_epoch_end')
            self._epoch = epoch
            self._call('on_epoch_begin')
        self._call('on_step_begin')

    def after(self, batch, loss):
        state = self._trainer.state
        state.global_step, state.epoch = batch.step + 1, (batch.step + 1) / self._each
        self._losses.append(loss)
        self._all.append(loss)
        self._call('on_step_end')
        if self._trainer.control.should_log:
            self._trainer.log({'loss': sum(self._losses) / len(self._losses)})
            self._losses = []
        self._stop_if_wanted()

    def _stop_if_wanted(self):
        if self._trainer.control.should_training_stop and self._trainer.state.global_step < self._total and not self._stopped:
            self._stopped = True
            adapters.stop(self._job, 'a callback of the Trainer has set should_training_stop')

    def _look(self, at_once=False):
        found = self._evaluations.new(time.monotonic(), at_once)
        if found is None:
            return
        found.pop('step')
        metrics = {name if name.startswith('eval_') else f'eval_{name}': value for name, value in found.items()}
        self._trainer.log(dict(metrics))
        self._call('on_evaluate', metrics)
        self._trainer._determine_best_metric(metrics, None)
        self._stop_if_wanted()

    def end(self):
        if self._epoch is not None:
            self._call('on_epoch_end')
        self._look(at_once=True)
        mean = sum(self._all) / max(len(self._all), 1)
        self._trainer.log({'train_loss': mean})
        self._call('on_train_end')
        return TrainOutput(self._trainer.state.global_step, mean, {'train_loss': mean})
