"""What can go wrong, each with its cause and what to do about it."""


class SluiceError(RuntimeError):
    """Of all errors of this package."""


class JobNotFound(SluiceError):
    """Nobody answers where the job should be, or it is another job."""


class VersionMismatch(SluiceError):
    """The job speaks another version of the protocol."""


class ModelMismatch(SluiceError):
    """Tensors or sample counts are not those of the job's other workers."""


class DuplicateWorker(SluiceError):
    """Another living process is the worker of this index."""


_FAILED = 'the job failed: '


class JobFailed(SluiceError):
    """The job failed. `reason` is the job's own sentence."""

    def __init__(self, reason: str, remedy: str = '') -> None:
        # The reason of a job may be what a worker raised: that begins and ends as this does.
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
