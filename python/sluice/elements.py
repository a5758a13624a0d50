"""Converts between the wire's data types and numpy's. bfloat16, which numpy lacks, is stored as
uint16."""

import numpy as np

from sluice import wire

STORAGE = {
    wire.FLOAT32: np.dtype('<f4'),
    wire.FLOAT64: np.dtype('<f8'),
    wire.BFLOAT16: np.dtype('<u2'),
    wire.FLOAT16: np.dtype('<f2'),
    wire.INT64: np.dtype('<i8'),
}
# The names in the code generated for other languages.
WIRE_NAMES = {
    wire.FLOAT32: 'FLOAT32',
    wire.FLOAT64: 'FLOAT64',
    wire.BFLOAT16: 'BFLOAT16',
    wire.FLOAT16: 'FLOAT16',
    wire.INT64: 'INT64',
}


def bfloat16_to_float32(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
