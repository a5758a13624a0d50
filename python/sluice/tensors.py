"""Converts named tensors for a program, to numpy arrays or torch tensors."""

import numpy as np

from sluice import elements
from sluice import errors
from sluice import safetensors
from sluice import wire


def dtype_of_name(name):
    """The data type with a manifest's name, such as FLOAT32."""
    if name not in elements.NAMES:
        raise errors.SluiceError(f'the data type {name} is unknown to this version')
    return getattr(wire, name)


# Types of safetensors by name; those that numpy lacks as their bits.
_NUMPY = {'F32': '<f4', 'F64': '<f8', 'F16': '<f2', 'C64': '<c8', 'I64': '<i8', 'I32': '<i4', 'I16': '<i2', 'I8': 'i1',
          'U64': '<u8', 'U32': '<u4', 'U16': '<u2', 'U8': 'u1', 'BOOL': '?', 'BF16': '<u2'}
# PyTorch's types that numpy lacks, which are read as bytes; a release of PyTorch has some of them. A byte
# of F4 is two numbers.
TORCH = {'float8_e4m3fn': 'F8_E4M3', 'float8_e5m2': 'F8_E5M2', 'float8_e8m0fnu': 'F8_E8M0',
         'float8_e4m3fnuz': 'F8_E4M3FNUZ', 'float8_e5m2fnuz': 'F8_E5M2FNUZ', 'float4_e2m1fn_x2': 'F4'}


def constant(path, array, torch=False):
    """An array of a safetensors file, which has more types than a job can train. Raises SluiceError for a
    type that numpy, or this PyTorch, does not have."""
    flat = np.frombuffer(array.data, dtype=_NUMPY.get(array.kind, 'u1')).copy()
    if array.kind in _NUMPY:
        return shaped(flat, wire.BFLOAT16 if array.kind == 'BF16' else None, array.shape, torch)
    if torch:
        return _of_torch(path, array, flat)
    if not array.kind.startswith('F8'):
        raise errors.SluiceError(f"{path}: array '{array.name}' is {array.kind}, which numpy does not have: "
                                 'give torch=True')
    return np.array(safetensors.decode_float8(array.kind), np.float32)[flat].reshape(array.shape)


def _of_torch(path, array, flat):
    import torch as torch_lib
    names = {kind: name for name, kind in TORCH.items()}
    kind = getattr(torch_lib, names.get(array.kind, ''), None)
    shape = list(array.shape)
    if array.kind == 'F4' and shape:
        shape[-1] //= 2  # PyTorch counts bytes
    if kind is None or np.prod(shape, dtype=object) != flat.size:
        raise errors.SluiceError(f"{path}: array '{array.name}' is {array.kind} of shape {list(array.shape)}, which "
                                 f'PyTorch {torch_lib.__version__} does not have')
    return torch_lib.from_numpy(flat).view(kind).reshape(shape)


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
