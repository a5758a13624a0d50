"""Datasets, and how samples are collated into a batch."""

import collections.abc
import contextlib
import hashlib
import math
import random
import typing

import numpy as np

from sluice import errors


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
    torch = _torch()
    if torch is not None:
        from torch.utils.data import default_collate as collate
        return collate(samples)
    first = samples[0]
    if isinstance(first, (tuple, list)):
        return tuple(default_collate(list(part)) for part in zip(*samples))
    if isinstance(first, dict):
        return {key: default_collate([sample[key] for sample in samples]) for key in first}
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
            isinstance(dataset, torch.utils.data.IterableDataset) or
            type(dataset).__getitem__ is torch.utils.data.Dataset.__getitem__):
        raise errors.UsageError(
            f'{what} is a {type(dataset).__name__}, which has len() but no sample with a number: define '
            '__getitem__(index) (and derive it from torch.utils.data.Dataset), because Sluice decides '
            'which sample is trained on when')
    if len(dataset) < 1:
        raise errors.UsageError(f'{what} has no samples')


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


def read(dataset, indices, collate=None):
    """Collates the samples with these numbers, in this order, into one batch."""
    torch = _torch()
    if collate is None:
        arrays = None
        if isinstance(dataset, ArrayDataset):
            arrays = dataset.arrays
        elif torch is not None and type(dataset) is torch.utils.data.TensorDataset:
            arrays = dataset.tensors
        if arrays is not None:
            # Indexing with an array avoids a Python object per sample.
            rows = np.asarray(indices)
            return tuple(array[torch.from_numpy(rows)] if torch is not None and
                         isinstance(array, torch.Tensor) else array[rows] for array in arrays)
    if hasattr(dataset, '__getitems__'):
        samples = dataset.__getitems__(indices)
    else:
        samples = [dataset[index] for index in indices]
    return (collate or default_collate)(samples)


def digest_of(dataset):
    """A 64-bit hash of a few samples; 0 if they are not the same in each read, or cannot be hashed."""
    indices = sorted({0, len(dataset) // 2, len(dataset) - 1})
    with _random_states_kept():
        try:
            first, second = (_hash_of(read(dataset, indices, list)) for _ in range(2))
        except Exception:  # pylint: disable=broad-except
            return 0  # the loop reports it where the program can see which samples it concerns
    return first if first == second else 0


@contextlib.contextmanager
def _random_states_kept():
    """What the program draws afterwards is what it would have drawn."""
    torch = _torch()
    states = (random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state())
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch is not None:
            torch.set_rng_state(states[2])


def _hash_of(value):
    """The hash of nested lists, tuples and dictionaries of arrays, tensors, numbers, text and bytes."""
    hasher = hashlib.blake2b(digest_size=8)

    def add(part):
        if isinstance(part, dict):
            part = list(part.items())
        if isinstance(part, (list, tuple)):
            hasher.update(b'[%d]' % len(part))
            for each in part:
                add(each)
        elif isinstance(part, (str, bytes)):
            encoded = part.encode() if isinstance(part, str) else part
            hasher.update(b'"%d"' % len(encoded) + encoded)
        else:
            torch = _torch()
            if torch is not None and isinstance(part, torch.Tensor) and part.dtype is torch.bfloat16:
                part = part.float()
            array = np.asarray(part)
            if array.dtype.hasobject:
                raise TypeError(f'a sample has a {type(part).__name__}')
            hasher.update(f'{array.dtype}{array.shape}'.encode() + array.tobytes())

    add(value)
    return int.from_bytes(hasher.digest(), 'little')
