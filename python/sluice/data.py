"""Datasets, and how samples are collated into a batch."""

import collections.abc
import dataclasses
import hashlib
import importlib.util
import math
import os
import typing

import numpy as np

from sluice import errors
from sluice import processors
from sluice import seeds as seeds_lib


def _torch():
    """Returns torch if the program has imported it, else None."""
    import sys
    return sys.modules.get('torch')


class RowGradient(typing.NamedTuple):
    """The gradient of a matrix of which all other rows are zeros."""
    rows: np.ndarray    # uint64, ascending, each once
    values: np.ndarray  # of these rows, flat or a matrix

    def dense(self, shape: typing.Sequence[int]) -> np.ndarray:
        """The whole gradient of a matrix of this shape, flat."""
        matrix = np.zeros(shape, self.values.dtype)
        matrix[self.rows.astype(np.int64)] = self.values.reshape(-1, shape[1])
        return matrix.reshape(-1)


class Evaluated(typing.NamedTuple):
    """What a model returns for a batch of held-out samples."""
    loss: float                    # the mean
    correct: typing.Optional[int]  # predictions; None: not counted
    weight: typing.Optional[float] # of the mean; None: the number of samples
    outputs: typing.Any = None     # for metrics
    targets: typing.Any = None


def row_numbers(name, rows):
    """The distinct rows, ascending, that a function of Worker's `rows` has returned for parameter `name`."""
    rows = np.unique(np.asarray(rows))
    check_rows(rows, f"rows['{name}']")
    return rows.astype(np.uint64)


class ArrayDataset:
    """A dataset whose samples are the rows of one or more arrays (numpy, or torch tensors) of equal
    length."""

    def __init__(self, *arrays: typing.Any) -> None:
        if not arrays or len({len(array) for array in arrays}) != 1:
            raise errors.UsageError('ArrayDataset needs one or more arrays of equal length; '
                                    f'lengths are {[len(array) for array in arrays]}')
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> tuple:
        return tuple(array[index] for array in self.arrays)


class TextDataset:
    """A dataset whose sample i is (text[i * length : (i + 1) * length], the same one byte later).

    Samples are byte values, input and target of a language model over bytes.
    """

    def __init__(self, text: typing.Union[str, bytes], length: int) -> None:
        data = text.encode() if isinstance(text, str) else bytes(text)
        self._bytes = np.frombuffer(data, dtype=np.uint8).astype(np.int64)
        self._length = length
        if len(self) < 1:
            raise errors.UsageError(f'a text of {len(data)} bytes has no sample of {length}')

    def __len__(self) -> int:
        return (self._bytes.size - 1) // self._length

    def __getitem__(self, index: int) -> typing.Tuple[np.ndarray, np.ndarray]:
        begin = index * self._length
        part = self._bytes[begin:begin + self._length + 1]
        return part[:-1], part[1:]


def default_collate(samples):
    """Collates with torch's default_collate if torch is imported; else into numpy arrays."""
    return default_collate_of_program()(samples)


def default_collate_of_program():
    """torch's default_collate if the program has imported torch; else numpy_collate."""
    if _torch() is None:
        return numpy_collate
    from torch.utils.data import default_collate as collate
    return collate


def numpy_collate(samples):
    """Collates samples into numpy arrays."""
    first = samples[0]
    if isinstance(first, (tuple, list)):
        return tuple(numpy_collate(list(part)) for part in zip(*samples))
    if isinstance(first, dict):
        return {key: numpy_collate([sample[key] for sample in samples]) for key in first}
    return np.stack([np.asarray(sample) for sample in samples])


def check_dataset(dataset, what):
    if not hasattr(dataset, '__len__') or not hasattr(dataset, '__getitem__'):
        raise errors.UsageError(
            f'{what} is a {type(dataset).__name__}, without len() and [index]. Sluice decides '
            'which sample is trained on when, so it needs a dataset of numbered samples '
            '(torch.utils.data.Dataset, a list, sluice.ArrayDataset), not an iterator or a '
            'DataLoader; give the dataset that the DataLoader was made of.')
    if type(dataset).__name__ == 'DataLoader':
        raise errors.UsageError(f'{what} is a DataLoader: give its dataset; worker.batches() makes '
                                'the batches')
    if isinstance(dataset, collections.abc.Mapping):
        raise errors.UsageError(f'{what} is a {type(dataset).__name__}: give one of its values, or, if '
                                'they are columns, sluice.ArrayDataset(*values)')
    torch = _torch()
    if torch is not None and not hasattr(dataset, '__getitems__') and (
            type(dataset).__getitem__ is torch.utils.data.Dataset.__getitem__):
        raise errors.UsageError(
            f'{what} is a {type(dataset).__name__}, which has len() but no sample with a number: define '
            '__getitem__(index) (and derive it from torch.utils.data.Dataset), because Sluice decides '
            'which sample is trained on when')
    if len(dataset) < 1:
        raise errors.UsageError(f'{what} has no samples')


def check_loading(num_workers, prefetch, pin_memory, context):
    """UsageError, or what the user should know of these arguments of Worker.batches."""
    for name, value, least in (('num_workers', num_workers, 0), ('prefetch', prefetch, 1)):
        if not isinstance(value, int) or value < least:
            raise errors.UsageError(f'{name} is {value!r}: it must be an integer from {least}')
    if not num_workers:
        for name, value in (('pin_memory', pin_memory), ('multiprocessing_context', context)):
            if value:
                raise errors.UsageError(f'{name} needs loader processes: give num_workers')
        return []
    # It is not imported here, because the batches of a program without it are numpy arrays.
    if importlib.util.find_spec('torch') is None:
        raise errors.UsageError(f'num_workers={num_workers} needs the processes of PyTorch, which is not '
                                'installed: install torch, or leave num_workers out')
    quota = processors.quota() or os.cpu_count()
    if num_workers <= quota:
        return []
    return [f'There are {num_workers} loader processes (num_workers) for {quota} '
            f'processor{"s" if quota > 1 else ""}: more processes than processors only help if samples '
            'wait for a disk or a network.']


def check_rows(rows, what):
    """Refuses numbers of rows that are not such."""
    if rows.size and (rows.dtype.kind not in 'iu' or rows.min() < 0):
        found = rows.dtype if rows.dtype.kind not in 'iu' else f'row {rows.min()}'
        raise errors.UsageError(f'{what} names {found}: rows are integers from 0. Leave padding out, as '
                                'in ids[ids >= 0]')


def checked_weight(weight):
    """The weight of a mean loss as a float."""
    weight = float(weight)
    if not 0 <= weight < math.inf:
        raise errors.UsageError(f'the weight of the loss is {weight:g}: it must be what the mean was '
                                'divided by, a finite number that is not negative')
    return weight


def applied_weight(weight, samples, weigh):
    """What the gradients of a mean loss are multiplied with; tells the job if it is not the number of
    samples. `weight` may be None, `samples` is None with `aggregation: Sum`."""
    if samples is None:
        return 0.0 if weight == 0 else 1.0
    if weight is None:
        return float(samples)
    if weigh is not None:
        weigh(weight)
    return float(weight)


def arrays_of(dataset):
    """The arrays whose rows are the samples; None if the data set has a code of its own."""
    torch = _torch()
    if isinstance(dataset, ArrayDataset) and type(dataset).__getitem__ is ArrayDataset.__getitem__:
        return dataset.arrays
    if torch is not None and type(dataset) is torch.utils.data.TensorDataset:
        return dataset.tensors
    return None


def rows_of(arrays, indices):
    """The batch of these rows. Indexing with an array avoids a Python object per sample."""
    torch = _torch()
    rows = np.asarray(indices)
    return tuple(array[torch.from_numpy(rows)] if torch is not None and
                 isinstance(array, torch.Tensor) else array[rows] for array in arrays)


def draws_nothing(dataset):
    """Whether reading a sample certainly draws no random number."""
    return type(dataset) in (list, tuple, TextDataset) or arrays_of(dataset) is not None


def reads_one_by_one(dataset):
    """Whether __getitems__ only calls __getitem__ of another data set for each sample."""
    return type(dataset).__module__.startswith('torch.utils.data')


def digest_of(dataset, seed: int = 0) -> int:
    """64 bits of a few samples, by which data that changed between two runs is noticed: of the first,
    the last, and some in between that follow from their number. 0: a stream, or samples that differ from
    reading to reading, have no known content, or cannot be read, which training reports."""
    if not hasattr(dataset, '__getitem__'):
        return 0
    count = len(dataset)
    places = sorted({place * (count - 1) // (_DIGEST_SAMPLES - 1) for place in range(_DIGEST_SAMPLES)})
    seeds = seeds_lib.Seeds(seed, dataset)

    def digest(order):
        found = {}
        for index in order:
            seeds.set(seeds_lib.TRAINING, index)
            content = hashlib.blake2b(digest_size=8)
            _hash(content, dataset[index])
            found[index] = content.digest()
        whole = hashlib.blake2b(count.to_bytes(8, 'little'), digest_size=8)
        for index in places:
            whole.update(found[index])
        return int.from_bytes(whole.digest(), 'little')

    try:
        with seeds_lib.kept():
            first, second = digest(places), digest(places[::-1])
    except Exception:
        return 0
    return first if first == second else 0


_DIGEST_SAMPLES = 8


def add_sample(content: typing.Any, sample: typing.Any) -> bool:
    """Adds a sample to a hash. False: it has no form that is the same in each process."""
    try:
        _hash(content, sample)
    except _UnknownContent:
        return False
    return True


class _UnknownContent(Exception):
    """An object has no form that is the same in each process."""


def _hash(content, value):
    """Adds a value's type and content."""
    torch = _torch()
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            value = value.view(torch.int16)
        value = value.numpy()
    if isinstance(value, (list, tuple)):
        content.update(f'[{len(value)}'.encode())
        for part in value:
            _hash(content, part)
    elif isinstance(value, dict):
        content.update(f'{{{len(value)}'.encode())
        for key in sorted(value, key=repr):
            _hash(content, key)
            _hash(content, value[key])
    elif value is None or isinstance(value, (bool, int, float, complex, str)):
        content.update(f'{type(value).__name__} {value!r}'.encode('utf-8', 'surrogatepass'))
    elif isinstance(value, (bytes, bytearray)):
        content.update(b'bytes %d ' % len(value) + bytes(value))
    elif isinstance(value, (np.ndarray, np.generic)) or hasattr(value, '__array__'):
        array = np.asarray(value)  # PIL's images, too
        if array.dtype.hasobject:
            raise _UnknownContent
        content.update(f'{array.dtype.str} {array.shape}'.encode() + np.ascontiguousarray(array).tobytes())
    elif dataclasses.is_dataclass(value):
        _hash(content, vars(value))
    else:
        raise _UnknownContent
