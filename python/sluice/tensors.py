"""Converts named tensors for a program, to numpy arrays or torch tensors."""

import numpy as np

from sluice import elements
from sluice import errors
from sluice import extras
from sluice import wire


def dtype_of_name(name):
    """The data type with a manifest's name, such as FLOAT32."""
    if name not in elements.NAMES:
        raise errors.SluiceError(f'the data type {name} is unknown to this version')
    return getattr(wire, name)


def constant(kind, data, shape, torch=False):
    """An array of a safetensors file, which has more types than a job can train."""
    if kind not in extras.TYPES:
        raise errors.SluiceError(f'the data type {kind} is unknown to this version')
    flat = np.frombuffer(data, dtype=extras.TYPES[kind]).copy()
    return shaped(flat, wire.BFLOAT16 if kind == 'BF16' else None, shape, torch)


def shaped(flat, dtype, shape, torch=False):
    """An array of the tensor's shape. bfloat16, which numpy lacks, becomes float32."""
    if torch:
        import torch as torch_lib
        if dtype == wire.BFLOAT16:
            tensor = torch_lib.from_numpy(flat.view(np.int16)).view(torch_lib.bfloat16)
        else:
            tensor = torch_lib.from_numpy(flat)
        return tensor.reshape(list(shape))
    if dtype == wire.BFLOAT16:
        flat = elements.bfloat16_to_float32(flat)
    return flat.reshape(list(shape))
