"""Data that can only be read from the beginning: streams of samples."""

import collections
import copy
import hashlib
import inspect
import os
import sys
import time
import typing

from sluice import data as data_lib
from sluice import errors
from sluice import seeds as seeds_lib
from sluice import stream_states

# The number of samples of a stream that has no len(): as many as a job can have.
ENDLESS = 1 << 40


_SECONDS = 1.0  # between two records
_SHARE = 50     # the time between two records is at least so many times that of making one
_OTHERS = f'next {stream_states.CHECKED} samples are others than when its record was made'


def is_stream(dataset: typing.Any) -> bool:
    """Whether the dataset is read by iter() alone, without numbered samples."""
    torch = sys.modules.get('torch')
    if not hasattr(dataset, '__iter__') or type(dataset).__name__ == 'DataLoader':
        return False
    if torch is None or not isinstance(dataset, torch.utils.data.Dataset):
        loader = torch is not None and isinstance(dataset, torch.utils.data.DataLoader)
        return not loader and not hasattr(dataset, '__getitem__')
    # Some have both: MDS of mosaicml-streaming, litdata.
    numbered = type(dataset).__getitem__ is not torch.utils.data.Dataset.__getitem__
    return isinstance(dataset, torch.utils.data.IterableDataset) and not (
        numbered and hasattr(dataset, '__len__'))


class _Following:
    """The samples that follow a record."""

    def __init__(self, record: stream_states.Record, seconds: float = 0.0) -> None:
        self.record = record
        self.seconds = seconds  # that making it has taken
        self.known = True       # each sample has a hash
        self._content = hashlib.blake2b(digest_size=8)
        self._count = 0

    @property
    def digest(self):
        return self._content.hexdigest() if self.known else None

    def add(self, sample):
        """Returns whether this was the last one."""
        began = time.monotonic()
        self.known = data_lib.add_sample(self._content, sample)
        self._count += 1
        self.seconds += time.monotonic() - began
        return not self.known or self._count == stream_states.CHECKED


class Stream:
    """The samples of a stream by their positions: sample p is the p-th that the stream gives.

    Every worker goes through the whole stream and takes the samples at its own positions. The last
    `keep` samples stay in memory, because other positions may be asked for when members change; for
    an earlier one the stream is read again, from the last state before it that is kept in
    `directory`, or from its beginning. When it ends, it is read again, after set_epoch(number) if it
    has that.

    Intuition. A state must lead to the samples that reading from the beginning would: each record
    has a hash of the samples that followed when it was made, and they are read and compared before
    one of them is given out.
    """

    def __init__(self, iterable: typing.Any, keep: int, directory: typing.Optional[str] = None) -> None:
        self._iterable = iterable
        self._length = _length_of(iterable)
        self._keep = max(keep, stream_states.CHECKED)
        self._directory = directory
        self._open()

    def __len__(self) -> int:
        return self._length or ENDLESS

    def __getstate__(self):
        return {name: self.__dict__[name] for name in ('_iterable', '_length', '_keep', '_directory')}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._open()

    def at(self, position: int, seed: typing.Callable[[int], None]) -> typing.Any:
        """The sample at a position; `seed(p)` is called before the p-th sample is read."""
        if self._iterator is None or position < self._next - len(self._kept):
            self._find(position, seed)
        while self._next <= position:
            self._read(seed)
        return self._kept[position - self._next]

    def _open(self):
        self._states = stream_states.States(self._directory)
        self._recording = True  # are made; False: their states do not lead to the same samples
        self._due = 0.0       # when the next one is made
        self._begin()

    # ---- reading

    def _begin(self):
        self._source = self._iterable  # of this pass
        self._iterator = None
        self._next = 0     # position of the next sample
        self._pass = -1    # over the stream
        self._in_pass = 0  # samples that this pass has given
        self._kept = collections.deque(maxlen=self._keep)
        self._known = None      # the record that the stream will be compared with
        self._following = None  # samples that are read

    def _find(self, position, seed):
        """Goes to the last record up to a position, or to the beginning."""
        self._begin()
        known = self._states.before(position)
        if known is not None and known.state is not None and self._recording:
            try:
                self._continue_at(known, seed)
                _say(f'the stream continues from its state at sample {known.position}, to sample {position}')
                return
            except Exception as error:
                _say(f'the state of the stream at sample {known.position} cannot be used '
                     f'({type(error).__name__}: {error}); the stream is read from its beginning')
            self._recording = False
            self._begin()
        self._known = known

    def _continue_at(self, known, seed):
        """Reads the samples that follow a record from its state; raises if that is not possible, or they
        are others."""
        self._load(known)
        following = self._following = _Following(known)
        while self._following is following:
            self._read(seed)
        if following.digest != known.digest:
            raise errors.SluiceError(f'the {_OTHERS}')

    def _load(self, known):
        # The stream itself stays without a state, for the next pass. Its generators of random numbers
        # are those of the copy, because they are seeded for each sample.
        shared = {id(each): each for each in seeds_lib.generators_of(self._iterable)}
        try:
            self._source = copy.deepcopy(self._iterable, shared)
        except Exception:
            self._source = self._iterable  # its next iter() begins the next pass, as in torchdata
        if hasattr(self._source, 'set_epoch'):
            self._source.set_epoch(known.number)
        state = stream_states.decode(known.state)
        if has_state(self._source):
            self._source.load_state_dict(state)
            self._iterator = iter(self._source)
        else:
            self._iterator = iter(self._source)
            self._iterator.load_state_dict(state)
        self._next, self._pass, self._in_pass = known.position, known.number, known.place

    def _read(self, seed):
        if self._following is None:
            self._following = self._begin_record()
        seed(self._next)
        sample = self._advance()
        self._next += 1
        self._kept.append(sample)
        if self._following is not None and self._following.add(sample):
            following, self._following = self._following, None
            self._end_record(following, sample)

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
        self._source = self._iterable
        self._pass += 1
        self._in_pass = 0
        if hasattr(self._source, 'set_epoch'):
            self._source.set_epoch(self._pass)
        self._iterator = iter(self._source)

    # ---- records

    def _begin_record(self):
        """The samples from here on, if their hash is needed; else None."""
        known = self._known
        if known is not None:
            if known.position != self._next:
                return None
            self._check_place(known)
            return _Following(known)
        if not self._recording or time.monotonic() < self._due or (self._next and not self._in_pass):
            return None
        began = time.monotonic()
        record = stream_states.Record(self._next, self._pass, self._in_pass, '', self._state())
        return _Following(record, time.monotonic() - began)

    def _end_record(self, following, sample):
        record = following.record
        if record.digest:
            if record is self._known:
                self._compare(record, following)
            self._known = None
        elif following.known:
            began = time.monotonic()
            if not record.position:  # another worker may have begun at the same time
                self._compare(self._states.before(0), following)
            self._states.add(record._replace(digest=following.digest))
            now = time.monotonic()
            self._due = now + max(_SECONDS, _SHARE * (following.seconds + now - began))
        else:
            self._recording = False
            if stateful(self._iterable, self._iterator):
                _say(f'the state of the stream is not kept, because its samples ({type(sample).__name__}) '
                     'cannot be compared')

    @staticmethod
    def _compare(record, following):
        if record is not None and record.digest != following.digest:
            _say(f'at sample {record.position} of the stream, the {_OTHERS}: it gives other samples each time '
                 'it is read, or the data has changed. Some samples are trained on twice, or never; give a '
                 'stream that shuffles a seed')

    def _check_place(self, known):
        if (known.number, known.place) != (self._pass, self._in_pass):
            raise errors.UsageError(
                f'the stream ({type(self._iterable).__name__}) has other samples than when training began: '
                f'sample {known.position} of the job is sample {self._in_pass} of pass {self._pass} over '
                f'it, and was sample {known.place} of pass {known.number}. Give the same data, or continue '
                'as another job (checkpoint.restoreFrom)')

    def _state(self):
        """The state of the stream, encoded; None: it has none."""
        if self._iterator is None or not stateful(self._iterable, self._iterator):
            return None
        try:
            holder = self._source if has_state(self._source) else self._iterator
            return stream_states.encode(holder.state_dict())
        except Exception as error:
            self._recording = False
            _say(f'the state of the stream is not kept ({type(error).__name__}: {error})')
            return None


def _say(text):
    print(f'sluice: {text}', file=sys.stderr, flush=True)


def has_state(value: typing.Any) -> bool:
    """Whether the object has the methods state_dict() and load_state_dict(state)."""
    if not all(callable(getattr(value, name, None)) for name in ('state_dict', 'load_state_dict')):
        return False
    try:
        inspect.signature(value.state_dict).bind()
    except (TypeError, ValueError):
        return False
    return True


def stateful(iterable: typing.Any, iterator: typing.Any = None) -> bool:
    """Whether reading can continue from a state of the stream, or of its iterator."""
    return (has_state(iterable) or has_state(iterator)) and not _shuffles(iterable)


def _shuffles(iterable):
    """Whether it is a stream of HuggingFace whose state lacks the samples in a shuffle buffer."""
    part = getattr(iterable, '_ex_iterable', None)
    while part is not None:
        if type(part).__name__ == 'BufferShuffledExamplesIterable':
            return True
        part = getattr(part, 'ex_iterable', None)
    return False


def _length_of(iterable):
    try:
        return len(iterable)
    except TypeError:
        return 0


def check(iterable: typing.Any, spec: typing.Any, num_workers: int) -> None:
    """UsageError: the stream cannot be trained on as the job is."""
    name = f'the dataset is a stream ({type(iterable).__name__})'
    if hasattr(iterable, '__next__') and iter(iterable) is iterable:
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


def note(iterable: typing.Any, directory: typing.Optional[str]) -> str:
    """What the user should know of this stream."""
    text = 'The data is a stream: every worker reads all of it and takes the samples of its own positions'
    if _shuffles(iterable):
        why = 'its state does not contain its shuffle buffer'
    elif not (stateful(iterable) or stateful(iterable, iter(iterable))):
        why = 'it has no state_dict() and load_state_dict()'
    elif not directory or not os.access(directory, os.W_OK):
        why = 'its state cannot be kept: this worker cannot write to the directory of the checkpoints'
    else:
        return (f'{text}; a worker that is restarted, and a resumed job, continue from its last state in '
                f'{os.path.join(directory, stream_states.NAME)}.')
    return f'{text}. A worker that is restarted, and a resumed job, read it again from its beginning: {why}.'
