"""The errors of this package. Each message states the cause and what to do."""


class SluiceError(RuntimeError):
    """Base class of all errors of this package."""


class JobNotFound(SluiceError):
    """No process answers at the job's address, or it belongs to another job."""


class VersionMismatch(SluiceError):
    """The job uses another version of the protocol."""


class ModelMismatch(SluiceError):
    """Tensors or sample counts differ from those of the job's other workers."""


class DuplicateWorker(SluiceError):
    """Another running process is the worker with this index."""


_FAILED = 'the job failed: '


class JobFailed(SluiceError):
    """The job failed. `reason` is the reason that the job gives."""

    def __init__(self, reason: str, remedy: str = '') -> None:
        # The reason may be this exception's text, raised by a worker: do not repeat prefix and
        # suffix.
        reason = reason.replace(_FAILED, '')
        if remedy and remedy not in reason:
            super().__init__(f'{_FAILED}{reason}. {remedy}')
        else:
            super().__init__(f'{_FAILED}{reason}')
        self.reason = reason


class NonFiniteGradient(JobFailed):
    """A gradient has NaN or infinity, and training.nonFinite is Fail."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, 'Lower the learning rate, set optimizer.clipNorm, look for a '
                         'division by zero or a logarithm of 0 in the loss, or let such steps be '
                         'skipped with training.nonFinite: Skip')


class JobEnded(SluiceError):
    """There is nothing left to do: the job has finished, or this worker has left it."""


class UsageError(SluiceError):
    """The package is used in a way that cannot work."""
