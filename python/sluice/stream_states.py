"""The file stream.states beside a job's checkpoints: states of the stream that its workers read.

A state is only a shortcut to a position. With it the file has a hash of the samples that follow, by
which a worker finds out whether the state leads to the samples that the stream gives there.
docs/checkpoints.md describes the format.
"""

import base64
import hashlib
import json
import os
import sys
import typing

import numpy as np

NAME = 'stream.states'
CHECKED = 8            # samples after a position that its hash is of
MAX_BYTES = 1 << 20    # of one state

_COUNT = 64            # records in the file
_DIGITS = 16           # of the checksum before a line


class Record(typing.NamedTuple):
    """What is known of a position of a stream."""
    position: int  # of a sample
    number: int    # of the pass over the stream
    place: int     # number of samples that this pass has given before
    digest: str    # of CHECKED samples from the position on
    state: typing.Any = None  # of the stream, encoded; None: it has none


class UnknownState(Exception):
    """A state cannot be kept."""


def encode(state: typing.Any) -> typing.Any:
    """The state in types that JSON has; UnknownState if that is not possible, or it is too large."""
    found = _encode(state)
    size = len(json.dumps(found))
    if size > MAX_BYTES:
        raise UnknownState(f'it has {size} bytes, and at most {MAX_BYTES} are kept')
    return found


def _encode(value):
    torch = sys.modules.get('torch')
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_encode(part) for part in value]
    if type(value) is tuple:
        return {'tuple': [_encode(part) for part in value]}
    if isinstance(value, dict):
        return {'dict': [[_encode(key), _encode(part)] for key, part in value.items()]}
    if isinstance(value, bytes):
        return {'bytes': base64.b64encode(value).decode()}
    if torch is not None and isinstance(value, torch.Tensor) and value.dtype != torch.bfloat16:
        return {'tensor': _encode(value.detach().cpu().numpy())}
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return {'array': [value.dtype.str, list(value.shape), _encode(value.tobytes())]}
    raise UnknownState(f'it has a {type(value).__name__}, and kept are numbers, texts, bytes, arrays, tensors, '
                       'and lists, tuples and dicts of these')


def decode(content: typing.Any) -> typing.Any:
    """The state of which `encode` made this."""
    if isinstance(content, list):
        return [decode(part) for part in content]
    if not isinstance(content, dict):
        return content
    (kind, value), = content.items()
    if kind == 'tuple':
        return tuple(decode(part) for part in value)
    if kind == 'dict':
        return {decode(key): decode(part) for key, part in value}
    if kind == 'bytes':
        return base64.b64decode(value)
    if kind == 'tensor':
        import torch
        return torch.from_numpy(decode(value))
    dtype, shape, content = value
    array = np.frombuffer(decode(content), dtype=dtype).reshape(shape).copy()
    return array if shape else array[()]


class States:
    """Records of a stream, in the order of their positions: all recent ones and, with growing
    distances, older ones, so that one is near each checkpoint.

    Every worker writes the file, because each reads the whole stream; the last one wins. Without a
    directory the records are only in memory.
    """

    def __init__(self, directory: typing.Optional[str]) -> None:
        self._directory = directory
        self._records = {}  # position -> (Record, its line in the file)

    def before(self, position: int) -> typing.Optional[Record]:
        """The last record up to this position; None: there is none."""
        for line in self._read():
            record = _parse(line)
            if record is not None:
                self._records.setdefault(record.position, (record, line))
        last = max((each for each in self._records if each <= position), default=None)
        return None if last is None else self._records[last][0]

    def add(self, record: Record) -> None:
        """Keeps a record, instead of those of later positions."""
        earlier = sorted(each for each in self._records if each < record.position)
        self._records[record.position] = (record, _line(record))
        self._records = {each: self._records[each] for each in thinned([*earlier, record.position])}
        self._write()

    def _read(self):
        if not self._directory:
            return []
        try:
            with open(os.path.join(self._directory, NAME), encoding='utf-8') as file:
                return file.read().splitlines()
        except (OSError, UnicodeDecodeError):
            return []

    def _write(self):
        if not self._directory:
            return
        path = os.path.join(self._directory, NAME)
        unfinished = f'{path}.tmp-{os.uname().nodename}-{os.getpid()}'
        try:
            # Not synced: a stream without the file is read from its beginning.
            with open(unfinished, 'w', encoding='utf-8') as file:
                file.writelines(f'{line}\n' for _, line in self._records.values())
            os.replace(unfinished, path)
        except OSError:
            if os.path.exists(unfinished):
                os.unlink(unfinished)


def thinned(positions: typing.List[int]) -> typing.List[int]:
    """At most _COUNT of the positions, which ascend; distances grow in proportion to the age.

    Dropped is the position whose neighbours are closest to each other for their distance from the
    last one.
    """
    kept = list(positions)
    while len(kept) > _COUNT:
        distances = [(after - before) / (kept[-1] - before) for before, after in zip(kept, kept[2:])]
        del kept[1 + distances.index(min(distances))]
    return kept


def _checksum(content):
    return hashlib.blake2b(content.encode(), digest_size=_DIGITS // 2).hexdigest()


def _line(record):
    content = json.dumps(record._asdict())
    return f'{_checksum(content)} {content}'


def _parse(line):
    """The record of a line; None if the line is damaged."""
    checksum, _, content = line.partition(' ')
    if checksum != _checksum(content):
        return None
    try:
        return Record(**json.loads(content))
    except (TypeError, ValueError):  # of another version
        return None
