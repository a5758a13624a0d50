"""Converts between the wire's data types and numpy's. bfloat16, which numpy lacks, is stored as
uint16."""

import numpy as np

from sluice.protocol import wire

STORAGE = {
    wire.FLOAT32: np.dtype('<f4'),
    wire.FLOAT64: np.dtype('<f8'),
    wire.BFLOAT16: np.dtype('<u2'),
    wire.FLOAT16: np.dtype('<f2'),
    wire.INT64: np.dtype('<i8'),
}
NAMES = {
    wire.FLOAT32: 'float32',
    wire.FLOAT64: 'float64',
    wire.BFLOAT16: 'bfloat16',
    wire.FLOAT16: 'float16',
    wire.INT64: 'int64',
}
# The names in the code generated for other languages.
WIRE_NAMES = {
    wire.FLOAT32: 'FLOAT32',
    wire.FLOAT64: 'FLOAT64',
    wire.BFLOAT16: 'BFLOAT16',
    wire.FLOAT16: 'FLOAT16',
    wire.INT64: 'INT64',
}


def element_bytes(dtype):
    """0 for an unknown data type."""
    storage = STORAGE.get(dtype)
    return 0 if storage is None else storage.itemsize


def element_count(tensor):
    count = 1
    for extent in tensor.shape:
        count *= extent
    return count


def bfloat16_to_float32(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(values):
    """Rounds to nearest, ties to even; a NaN stays a quiet NaN of the same sign."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7fff) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    is_nan = (bits & np.uint32(0x7fffffff)) > np.uint32(0x7f800000)
    return np.where(is_nan, quiet_nan, rounded).astype(np.uint16)


def float64_to_bfloat16(values):
    """Avoids double rounding: rounds towards zero first, with the last bit set if anything was
    lost."""
    values = np.ascontiguousarray(values, dtype=np.float64)
    with np.errstate(over='ignore', invalid='ignore'):
        nearest = values.astype(np.float32)
    back = nearest.astype(np.float64)
    bits = nearest.view(np.uint32)
    away = (np.abs(back) > np.abs(values)).astype(np.uint32)
    odd = ((back != values) & (values == values)).astype(np.uint32)
    return float32_to_bfloat16(((bits - away) | odd).view(np.float32))


def add(dtype, left, right):
    """left + right in the elements' own type: 16-bit types are added as float32, rounded once.

    Addition commutes to the bit, so a node of the reduction tree has the same bits wherever it is
    summed (services/worker/core/gradient_sum.h).
    """
    if left.size != right.size:
        raise ValueError(f'gradients of {left.size} and {right.size} elements cannot be added')
    with np.errstate(over='ignore', invalid='ignore'):
        if dtype == wire.BFLOAT16:
            return float32_to_bfloat16(bfloat16_to_float32(left) + bfloat16_to_float32(right))
        if dtype == wire.FLOAT16:
            return (left.astype(np.float32) + right.astype(np.float32)).astype(np.float16)
        return left + right
