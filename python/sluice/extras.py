"""The file state_dict.extras: the entries of a model's state_dict that a job does not train.

They are second names (tied weights) and constant buffers (masks). A worker writes the file beside
the checkpoints; `sluice.load` and `sluice export` read it. docs/checkpoints.md describes the
format.
"""

import os

import numpy as np

from sluice import errors
from sluice import library
from sluice import safetensors

NAME = 'state_dict.extras'
_FORMAT = 'sluice-state-dict-extras-1'
_ALIAS = 'alias:'
_LINE_BYTES = len('crc32c 00000000\n')
def _checksum_line(content):
    return b'crc32c %08x\n' % library.crc32c(content)


def encode(aliases, constants):
    """The file's content. `aliases`: second name -> first; `constants`: name -> (type, array,
    shape)."""
    metadata = {'format': _FORMAT, **{_ALIAS + name: first for name, first in aliases.items()}}
    content = safetensors.write(
        (safetensors.Array(name, kind, list(shape), np.ascontiguousarray(flat).tobytes())
         for name, (kind, flat, shape) in constants.items()), metadata)
    return content + _checksum_line(content)


def check(path, content):
    """The safetensors part of the file's content. Raises SluiceError for a damaged one."""
    body = content[:-_LINE_BYTES]
    if len(content) < _LINE_BYTES or content[-_LINE_BYTES:] != _checksum_line(body):
        raise errors.SluiceError(f'{path} is damaged: its CRC32C does not match. '
                                 'Remove this file to read only the trained tensors')
    return body


def aliases_of(metadata):
    """Returns second name -> first name from the file's metadata."""
    return {key[len(_ALIAS):]: first for key, first in metadata.items() if key.startswith(_ALIAS)}


def keep(directory, index, aliases, constants):
    """Writes the file if the directory exists and is writable.

    A worker that cannot write it trains anyway: the checkpoints contain all trained tensors under
    their first names.
    """
    if not directory or not os.path.isdir(directory):
        return
    path = os.path.join(directory, NAME)
    # Written even if empty, to replace the extras of an earlier model.
    if not aliases and not constants and not os.path.exists(path):
        return
    content = encode(aliases, constants)
    unfinished = f'{path}.tmp-{index}-{os.getpid()}'
    try:
        with open(unfinished, 'wb') as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
