"""Data that can only be read from the beginning: streams of samples."""

import collections
import typing

from sluice import errors

# The number of samples of a stream that has no len(): as many as a job can have.
ENDLESS = 1 << 40


def is_stream(dataset: typing.Any) -> bool:
    """Whether the dataset is read by iter() alone, without numbered samples."""
    if not hasattr(dataset, '__iter__') or type(dataset).__name__ == 'DataLoader':
        return False
    import sys
    torch = sys.modules.get('torch')
    iterable = torch is not None and isinstance(dataset, torch.utils.data.IterableDataset)
    return iterable or not hasattr(dataset, '__getitem__')


class Stream:
    """The samples of a stream by their positions: sample p is the p-th that the stream gives.

    Every worker goes through the whole stream and takes the samples at its own positions. The last
    `keep` samples stay in memory, because other positions may be asked for when members change; for
    an earlier one the stream is read from its beginning. When it ends, it is read again, after
    set_epoch(number) if it has that.
    """

    def __init__(self, iterable: typing.Any, keep: int) -> None:
        self._iterable = iterable
        self._length = _length_of(iterable)
        self._keep = keep
        self._begin()

    def __len__(self) -> int:
        return self._length or ENDLESS

    def __getstate__(self):
        return {'_iterable': self._iterable, '_length': self._length, '_keep': self._keep}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._begin()

    def at(self, position: int, seed: typing.Callable[[int], None]) -> typing.Any:
        """The sample at a position; `seed(p)` is called before the p-th sample is read."""
        if position < self._next - len(self._kept):
            self._begin()
        while self._next <= position:
            seed(self._next)
            self._kept.append(self._advance())
            self._next += 1
        return self._kept[position - self._next]

    def _begin(self):
        self._iterator = None
        self._next = 0     # position of the next sample
        self._pass = -1    # over the stream
        self._in_pass = 0  # samples that this pass has given
        self._kept = collections.deque(maxlen=self._keep)

    def _advance(self):
        end = object()
        for _ in range(2):
            sample = end if self._iterator is None else next(self._iterator, end)
            if sample is not end:
                self._in_pass += 1
                return sample
            self._begin_pass()
        raise errors.UsageError(f'the stream ({type(self._iterable).__name__}) has no samples')

    def _begin_pass(self):
        if self._iterator is not None and self._length and self._in_pass != self._length:
            raise errors.UsageError(
                f'the stream ({type(self._iterable).__name__}) gave {self._in_pass} samples, and its '
                f'len() is {self._length}: len() must be right, or raise TypeError if it is not known')
        self._pass += 1
        self._in_pass = 0
        if hasattr(self._iterable, 'set_epoch'):
            self._iterable.set_epoch(self._pass)
        self._iterator = iter(self._iterable)


def _length_of(iterable):
    try:
        return len(iterable)
    except TypeError:
        return 0


def check(iterable: typing.Any, spec: typing.Any, num_workers: int) -> None:
    """UsageError: the stream cannot be trained on as the job is."""
    name = f'the dataset is a stream ({type(iterable).__name__})'
    if iter(iterable) is iterable:
        raise errors.UsageError(
            f'the dataset is a {type(iterable).__name__}, an iterator, which can be read once and has '
            'no numbered samples. Sluice decides which sample is trained on when: give a dataset with '
            'len() and [index] (torch.utils.data.Dataset, a list, sluice.ArrayDataset), or an object '
            'whose __iter__ starts from the first sample each time')
    if not spec.data.no_shuffle:
        raise errors.UsageError(f'{name}, which is read in its own order: set data.shuffle: false, and '
                                'shuffle in the stream')
    if not _length_of(iterable) and not spec.training.steps:
        raise errors.UsageError(f'{name} without len(), so there are no epochs: set training.steps')
    if num_workers > 1:
        raise errors.UsageError(f'{name}, which one process reads: give num_workers=1 instead of '
                                f'{num_workers}')
    if getattr(iterable, '_distributed', None) is not None:
        raise errors.UsageError(
            f'{name} of one node (split_dataset_by_node): give the whole stream, because every worker '
            'takes its own samples from it')


NOTE = ('The data is a stream: every worker reads all of it and takes the samples of its own positions; '
        'a worker that is restarted, and a resumed job, read it again from its beginning.')
