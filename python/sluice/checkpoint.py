"""Reads what a job saved: a checkpoint, a storage of checkpoints, or what `sluice export` wrote.

The formats are told in docs/checkpoints.md.
"""

import json
import math
import pathlib
import re
import struct

import numpy as np

from sluice import errors
from sluice import tensors
from sluice.protocol import elements

_BLOCK = re.compile(r'(.*)\[(\d+):(\d+)\]')


def load(path, *, torch=False):
    """Name -> tensor of everything that a job trained, in the order of the state_dict.

    `path` is a checkpoint's folder, a folder of checkpoints (the newest is taken), a job's folder
    (.sluice/<name>), or a .safetensors file of `sluice export`. The tensors are numpy arrays
    (bfloat16 as float32); with torch=True they are torch tensors of their own types, ready for
    `module.load_state_dict`. Raises FileNotFoundError, or SluiceError naming the file that is
    damaged.
    """
    path = pathlib.Path(path)
    if path.is_file():
        return _load_safetensors(path, torch)
    folder = _checkpoint_folder(path)
    manifest = json.loads((folder / 'manifest.json').read_text())
    flats = {}
    for spec in manifest['table']['tensors']:
        dtype = tensors.dtype_of_name(spec['dtype'])
        shape = [int(extent) for extent in spec.get('shape', [])]
        flats[spec['name']] = (dtype, shape,
                               np.zeros(math.prod(shape), dtype=elements.STORAGE[dtype]))
    filled = {name: 0 for name in flats}
    for file in manifest.get('files', []):
        _read_partition(folder / file['name'], flats, filled)
    for name, (_, _, flat) in flats.items():
        if filled[name] != flat.size:
            raise errors.SluiceError(f"{folder}: {filled[name]} of {flat.size} elements of "
                                     f"'{name}' are there")
    return {name: tensors.shaped(flat, dtype, shape, torch)
            for name, (dtype, shape, flat) in flats.items()}


def _checkpoint_folder(path):
    if (path / 'manifest.json').exists():
        return path
    for storage in (path, path / 'checkpoints'):
        found = sorted(storage.glob('attempt-*/manifest.json'))
        if found:
            return found[-1].parent
    raise FileNotFoundError(
        f'{path} holds no checkpoint: there is no manifest.json in it, nor in a folder '
        'attempt-*. Give a checkpoint, its storage, or .sluice/<job>')


def _arrays(path):
    """Name -> (dtype, shape, bytes) of a safetensors file."""
    content = path.read_bytes()
    try:
        (length,) = struct.unpack('<Q', content[:8])
        header = json.loads(content[8:8 + length])
        for name, array in header.items():
            if name == '__metadata__':
                continue
            begin, end = (8 + length + offset for offset in array['data_offsets'])
            if end > len(content):
                raise ValueError('it is cut off')
            yield name, array['dtype'], array['shape'], memoryview(content)[begin:end]
    except (ValueError, KeyError, struct.error) as error:
        raise errors.SluiceError(f'{path} is no safetensors file: {error}') from error


def _read_partition(path, flats, filled):
    for name, _, _, data in _arrays(path):
        block = _BLOCK.fullmatch(name)
        if block is None or block[1] not in flats:  # optimizer state
            continue
        flat = flats[block[1]][2]
        values = np.frombuffer(data, dtype=flat.dtype)
        begin, end = int(block[2]), int(block[3])
        if end > flat.size or values.size != end - begin:
            raise errors.SluiceError(f'{path}: the block {name} does not fit its tensor')
        flat[begin:end] = values
        filled[block[1]] += values.size


def _load_safetensors(path, torch):
    found = {}
    for name, kind, shape, data in _arrays(path):
        dtype = tensors.dtype_of_name(kind)
        flat = np.frombuffer(data, dtype=elements.STORAGE[dtype]).copy()
        found[name] = tensors.shaped(flat, dtype, shape, torch)
    return found
