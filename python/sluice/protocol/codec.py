"""How blocks' elements are encoded in a payload (services/protocol/codec)."""

import numpy as np

from sluice.protocol import elements
from sluice.protocol import wire


def supports(codec, dtype):
    if codec == wire.CODEC_RAW:
        return dtype in elements.STORAGE
    return codec in (wire.CODEC_FLOAT16, wire.CODEC_BFLOAT16) and dtype in (
        wire.FLOAT32, wire.FLOAT64)


def encoded_bytes(codec, dtype, count):
    return count * (elements.element_bytes(dtype) if codec == wire.CODEC_RAW else 2)


def encode(codec, dtype, values):
    """A flat array of what goes on the wire."""
    if codec == wire.CODEC_RAW:
        return values
    if codec == wire.CODEC_FLOAT16:
        with np.errstate(over='ignore'):
            return values.astype('<f2')
    if dtype == wire.FLOAT64:
        return elements.float64_to_bfloat16(values)
    return elements.float32_to_bfloat16(values)


def decode_into(codec, dtype, payload, out):
    """Decodes a bytes-like payload into `out`, a flat array in the storage type of `dtype`.

    ValueError, with nothing written, for a codec that cannot carry it or another size.
    """
    if not supports(codec, dtype):
        raise ValueError(f'a payload of {elements.NAMES.get(dtype, dtype)} in codec {codec}, which '
                         'this version of the package does not know')
    size = out.size * (2 if codec != wire.CODEC_RAW else out.itemsize)
    if len(payload) != size:
        raise ValueError(f'a payload of {len(payload)} bytes for a block that takes {size}')
    if codec == wire.CODEC_RAW:
        out[:] = np.frombuffer(payload, dtype=out.dtype)
    elif codec == wire.CODEC_FLOAT16:
        out[:] = np.frombuffer(payload, dtype='<f2')
    else:
        out[:] = elements.bfloat16_to_float32(np.frombuffer(payload, dtype='<u2'))
