"""Reads what a job saved: a checkpoint, a directory of checkpoints, or a file of `sluice export`.

docs/checkpoints.md describes the formats.
"""

import json
import math
import os
import pathlib
import re
import stat
import typing
import warnings

import numpy as np

from sluice import errors
from sluice import extras
from sluice import library
from sluice import safetensors
from sluice import tensors
from sluice import types
from sluice import elements

_BLOCK = re.compile(r'(.*)\[(\d+):(\d+)\]')
_FORMAT_VERSION = 2
_CHECKSUM = re.compile(rb',\n "crc32c": "([0-9a-f]{8})"\n}\n\Z')
_MAX_INDEX_BYTES = 256 << 20
_MAX_FILE_BYTES = 64 << 30


def load(path: types.Path, *, torch: bool = False) -> typing.Dict[str, typing.Any]:
    """Returns name -> tensor of the model's state_dict: the trained tensors, then second names of
    tied tensors and constant buffers.

    `path` is a checkpoint's directory, a directory of checkpoints (the newest is used), a job's directory
    (.sluice/<name>), or a .safetensors file. The tensors are numpy arrays (bfloat16 and the types with
    8 bits as float32); with torch=True they are torch tensors of their own types, ready for
    `module.load_state_dict`. Raises FileNotFoundError, or SluiceError naming the damaged file. A
    damaged checkpoint in a directory of checkpoints is skipped with a warning.
    """
    path = pathlib.Path(path)
    if path.is_file():
        return _load_safetensors(path, torch)
    problems = []
    for directory in _checkpoint_directories(path):
        try:
            return _load_checkpoint(directory, torch)
        except (errors.SluiceError, FileNotFoundError) as error:
            if directory == path:
                raise
            problems.append(str(error))
            warnings.warn(f'checkpoint skipped: {error}', stacklevel=2)
    raise errors.SluiceError(f'{path} contains no intact checkpoint: ' + '; '.join(problems))


def _load_checkpoint(directory, torch):
    checkpoint_index = _read_checkpoint_index(directory / 'manifest.json')
    try:
        flats = {}
        for spec in checkpoint_index['table']['tensors']:
            dtype = tensors.dtype_of_name(spec['dtype'])
            shape = [int(extent) for extent in spec.get('shape', [])]
            flats[spec['name']] = (dtype, shape,
                                   np.zeros(math.prod(shape), dtype=elements.STORAGE[dtype]))
        files = [(file['name'], int(file.get('bytes', 0)), int(file.get('crc32c', 0)))
                 for file in checkpoint_index.get('files', [])]
    except (KeyError, TypeError, ValueError, MemoryError) as error:
        raise errors.SluiceError(f'{directory}/manifest.json contradicts itself: {error!r}') from error

    filled = {name: 0 for name in flats}
    for name, size, crc in files:
        if not name or '/' in name:
            raise errors.SluiceError(f"{directory}/manifest.json: '{name}' is not a valid file name")
        content = _read_file(directory / name, _MAX_FILE_BYTES)
        if len(content) != size or library.crc32c(content) != crc:
            raise errors.SluiceError(f'{directory / name} is damaged: its size or its CRC32C differs '
                                     'from the index')
        _read_partition(directory / name, content, flats, filled)

    for name, (_, _, flat) in flats.items():
        if filled[name] != flat.size:
            raise errors.SluiceError(f"{directory} is damaged: it has only {filled[name]} of the "
                                     f"{flat.size} elements of '{name}'")

    state = {name: tensors.shaped(flat, dtype, shape, torch)
             for name, (dtype, shape, flat) in flats.items()}
    _add_extras(directory.absolute().parent / extras.NAME, state, torch)
    return state


def _add_extras(path, state, torch):
    """The entries of the state_dict that are not trained, as the workers wrote them."""
    try:
        content = _read_file(path, _MAX_FILE_BYTES)
    except FileNotFoundError:
        return
    metadata, arrays = safetensors.read(path, extras.check(path, content))
    constants = {array.name: tensors.constant(path, array, torch) for array in arrays}
    aliases = extras.aliases_of(metadata)
    wrong = [name for name in [*constants, *aliases] if name in state]
    wrong += [name for name, first in aliases.items() if first not in state]
    if wrong:
        raise errors.SluiceError(f"{path} belongs to another model: '{wrong[0]}' does not fit the "
                                 'checkpoint. Remove this file to read only the trained tensors')
    state.update(constants)
    for name, first in aliases.items():
        state[name] = state[first]


def _checkpoint_directories(path):
    """The files manifest.json: the one of a checkpoint, or those of a directory, newest first."""
    if (path / 'manifest.json').exists():
        return [path]
    for storage in (path, path / 'checkpoints'):
        found = [checkpoint_index.parent for checkpoint_index in storage.glob('attempt-*/manifest.json')]
        if found:
            return sorted(found, key=lambda directory: [int(number) for number in re.findall(r'\d+', directory.name)],
                          reverse=True)
    raise FileNotFoundError(
        f'{path} contains no checkpoint: there is no manifest.json in it, nor in a directory '
        'attempt-*. Give a checkpoint, its storage, or .sluice/<job>')


def _read_file(path, max_bytes):
    """The bytes of a regular file. Anything else is refused: reading a pipe could block forever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise errors.SluiceError(f'{path} cannot be read: {error.strerror}') from error
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        os.close(descriptor)
        raise errors.SluiceError(f'{path} is not a file')
    with os.fdopen(descriptor, 'rb') as file:
        if info.st_size > max_bytes:
            raise errors.SluiceError(f'{path} is longer than {max_bytes} bytes')
        return file.read(info.st_size)


def read_file(path: types.Path) -> bytes:
    """The bytes of a file with tensors."""
    return _read_file(path, _MAX_FILE_BYTES)


def _read_checkpoint_index(path):
    content = _read_file(path, _MAX_INDEX_BYTES)
    found = _CHECKSUM.search(content)
    if found and int(found[1], 16) != library.crc32c(content[:found.start()]):
        raise errors.SluiceError(f'{path} is damaged: its CRC32C does not match')
    try:
        checkpoint_index = json.loads(content)
        version = int(checkpoint_index['format_version'])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise errors.SluiceError(f'{path} is not a checkpoint index: {error!r}') from error
    if version > _FORMAT_VERSION:
        raise errors.SluiceError(f'{path} is of format version {version}; this package reads up to '
                                 f'{_FORMAT_VERSION}')
    if (version >= 2) != bool(found):
        raise errors.SluiceError(f'{path} is damaged: its checksum is missing')
    return checkpoint_index


def _read_partition(path, content, flats, filled):
    for name, kind, _, data in safetensors.read(path, content)[1]:
        block = _BLOCK.fullmatch(name)
        if block is None or block[1] not in flats:  # optimizer state
            continue
        dtype, _, flat = flats[block[1]]
        if kind != elements.KINDS[dtype]:
            raise errors.SluiceError(f'{path}: the block {name} is {kind}, its tensor is {elements.KINDS[dtype]}')
        values = np.frombuffer(data, dtype=flat.dtype)
        begin, end = int(block[2]), int(block[3])
        if end > flat.size or values.size != end - begin:
            raise errors.SluiceError(f'{path}: the block {name} does not fit its tensor')
        flat[begin:end] = values
        filled[block[1]] += values.size


def _load_safetensors(path, torch):
    _, arrays = safetensors.read(path, _read_file(path, _MAX_FILE_BYTES))
    return {array.name: tensors.constant(path, array, torch) for array in arrays}
