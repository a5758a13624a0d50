"""Converts between the wire's data types and numpy's. bfloat16, which numpy lacks, is stored as
uint16."""

import numpy as np

from sluice import wire

# Their names in checkpoints.
NAMES = {'FLOAT32': '<f4', 'FLOAT64': '<f8', 'BFLOAT16': '<u2', 'FLOAT16': '<f2', 'INT64': '<i8'}
# Their names in safetensors.
KINDS = {wire.FLOAT32: 'F32', wire.FLOAT64: 'F64', wire.BFLOAT16: 'BF16', wire.FLOAT16: 'F16', wire.INT64: 'I64'}
STORAGE = {getattr(wire, name): np.dtype(kind) for name, kind in NAMES.items()}


def bfloat16_to_float32(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
