"""What a job must know of a module before it trains it: its smallest batch, and notes for the user."""

import torch

from sluice import wire

_BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm
_SCRIPTED = ('BatchNorm1d', 'BatchNorm2d', 'BatchNorm3d', 'SyncBatchNorm')


def _uses_batch(part):
    """Whether it is a batch norm that computes with the statistics of the batch."""
    if not isinstance(part, _BATCH_NORM) and getattr(part, 'original_name', '') not in _SCRIPTED:
        return False
    return part.training or part.running_mean is None


def smallest_batch(module):
    """(samples, name of the module because of which it cannot be fewer), in the present modes."""
    for name, part in module.named_modules():
        if _uses_batch(part):
            return 2, name or type(module).__name__
    return 1, ''


def notes(module, spec, synchronized=False):
    """What the user should know before training starts, one sentence each. `spec`: the JobSpec.
    `synchronized`: batch norms use the statistics of the whole step."""
    found = []
    inactive = (torch.nn.modules.dropout._DropoutNd, _BATCH_NORM)
    if not module.training and any(isinstance(part, inactive) and not part.training
                                   for part in module.modules()):
        found.append('The module is in evaluation mode, so dropout is off and batch norm keeps its '
                     'statistics: call module.train() before worker.batches() unless this is intended.')

    _, name = smallest_batch(module)
    training = spec.training
    if synchronized:
        if not any(isinstance(part, _BATCH_NORM) for part in module.modules()):
            found.append('training.sync: BatchNorm has no effect: the module has no batch norm.')
    elif name and training.mode == wire.SYNCHRONOUS:
        part = None
        if training.bit_exact or training.aggregation != wire.TrainingSpec_MEAN:
            part = f'each microbatch ({training.microbatch_size} samples)'
        elif spec.worker.replicas > 1:
            part = "each worker's part of a step, as with DistributedDataParallel"
        if part:
            found.append(f"Batch norm '{name}' uses the statistics of {part}.")
    return found


def describe(module, spec, synchronized=False):
    """Arguments of library.Handle.describe."""
    samples, name = smallest_batch(module)
    return {'smallest_batch': samples, 'module': name, 'notes': notes(module, spec, synchronized)}
