"""Named tensors as this package gives them to a program: numpy arrays, or torch tensors."""

import numpy as np

from sluice import errors
from sluice.protocol import elements
from sluice.protocol import wire

_WIRE_OF = {name: number for number, name in elements.WIRE_NAMES.items()}
_SAFETENSORS = {'F32': wire.FLOAT32, 'F64': wire.FLOAT64, 'BF16': wire.BFLOAT16,
                'F16': wire.FLOAT16, 'I64': wire.INT64}


def dtype_of_name(name):
    """Of FLOAT32 (in manifests) or F32 (in safetensors files)."""
    dtype = _WIRE_OF.get(name, _SAFETENSORS.get(name))
    if dtype is None:
        raise errors.SluiceError(f'the data type {name} is not known to this version')
    return dtype


def shaped(flat, dtype, shape, torch=False):
    """An array of the tensor's shape. bfloat16, which numpy has not, comes as float32."""
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
