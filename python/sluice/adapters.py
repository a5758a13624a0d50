"""What the adapters for Lightning and the HuggingFace Trainer have in common while a job runs."""

import functools
import sys

from sluice import errors
from sluice import wire


def say(job, text):
    """Prints a line once for the job: into the log of its first worker."""
    if job.index == 0:
        print(f'sluice: {text}', file=sys.stderr, flush=True)


def length(job, samples, what):
    """(steps of an epoch, steps of the job)"""
    training = job.spec.training
    if training.mode != wire.SYNCHRONOUS:
        raise errors.UsageError(f'{what} counts steps, which only `training.mode: Synchronous` has')
    drop = training.last_batch == wire.TrainingSpec_DROP
    steps = samples // training.global_batch_size if drop else -(-samples // training.global_batch_size)
    return max(steps, 1), training.steps or training.epochs * steps


def stop(job, reason):
    """Ends the job at the next step: as Succeeded, where sluice.Job has `stop`."""
    if not hasattr(job, 'stop'):
        raise errors.UsageError(f'{reason}, and this version of Sluice cannot end a job early: `sluice stop` suspends it')
    job.stop(reason)


def held_out_loss(compute, data):
    """compute() with its weight, which the operations of the loss tell only where gradients are recorded."""
    import torch

    from sluice import torch_losses
    while not isinstance(data, torch.Tensor):
        data = next(iter(data.values() if hasattr(data, 'values') else data))
    with torch.enable_grad():
        returned = torch_losses.split(compute())
        loss, weight = returned.loss, returned.weight
        if weight is None and loss.grad_fn is not None:
            weight = torch_losses.weight_of_loss(loss, None, None, len(data))
    return loss.detach() if weight is None else (loss.detach(), weight)


def several(what, function, first, padding):
    """Metrics of a job, as worker.batches takes them: the values of function(outputs, targets), which returns
    {name: value} and is called once for an evaluation. `first`: its values for other samples, which have all names.
    `padding`: outputs and targets are filled up with it to one length."""
    values = {}

    def value(name, outputs, targets):
        if name not in values:
            values.clear()
            values.update(function(outputs, targets))
            if set(values) != set(first):
                raise errors.UsageError(f'{what} gives {", ".join(sorted(values))}, and gave {", ".join(sorted(first))} for '
                                        'some held-out samples at the start: it must give the same names each time')
        return values.pop(name)

    metrics = {name: functools.partial(value, name) for name in first}
    for metric in metrics.values():
        metric.padding = padding
    return metrics


class Evaluations:
    """The job's evaluations, as they are committed: at most one request a second."""

    def __init__(self, job, seconds=1.0):
        self._job = job
        self._seconds = seconds
        self._next = self._step = None

    def new(self, now, at_once=False):
        """{'loss': ..., 'accuracy': ..., 'step': ..., ...} of an evaluation that was not returned before, or None."""
        if not at_once and self._next is not None and now < self._next:
            return None
        self._next = now + self._seconds
        try:
            progress = self._job.progress()
        except errors.SluiceError:
            return None  # the coordinator has ended, or starts again
        found = progress.last_evaluation
        if not progress.HasField('last_evaluation') or found.step == self._step:
            return None
        self._step = found.step
        values = {'loss': found.loss, 'step': found.step}
        if found.has_accuracy:
            values['accuracy'] = found.accuracy / 100
        values.update((metric.name, metric.value) for metric in found.metrics)
        return values
