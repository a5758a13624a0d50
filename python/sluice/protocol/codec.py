"""How blocks' elements are encoded in a payload (services/protocol/codec).

Payloads and their sources are described in docs/compression.md. Everything here produces the same
bytes as the C++ codecs; tests/vectors checks it.
"""

import dataclasses
import math

import numpy as np

from sluice.protocol import elements
from sluice.protocol import wire

_INT8_GROUP = 256
_ONE_BIT_GROUP = 512
_LOSSY = (wire.CODEC_TOP_K, wire.CODEC_INT8, wire.CODEC_ONE_BIT, wire.CODEC_SIGN_THRESHOLD)


@dataclasses.dataclass(frozen=True)
class Options:
    """Parameters that only encoding needs."""
    fraction: float = 0.01  # TopK: fraction of a block's elements that is sent, rounded up
    threshold: float = 1.0  # SignThreshold


def supports(codec, dtype):
    if codec == wire.CODEC_RAW:
        return dtype in elements.STORAGE
    return codec in (wire.CODEC_FLOAT16, wire.CODEC_BFLOAT16, *_LOSSY) and dtype in (
        wire.FLOAT32, wire.FLOAT64)


def is_elementwise(codec):
    """Whether the encoding of a piece is the concatenation of its parts' encodings."""
    return codec not in _LOSSY


def encoded_bytes(codec, dtype, count):
    """The encoded type of an elementwise codec."""
    return count * (elements.element_bytes(dtype) if codec == wire.CODEC_RAW else 2)


def encode(codec, dtype, values, options=Options()):
    """Encodes into a flat array for the wire; codecs that are not elementwise take one block."""
    if codec == wire.CODEC_RAW:
        return values
    if codec in _LOSSY:
        with np.errstate(over='ignore', invalid='ignore', divide='ignore'):
            narrow = np.ascontiguousarray(values, dtype='<f4')
            return _ENCODERS[codec](narrow, options)
    if codec == wire.CODEC_FLOAT16:
        with np.errstate(over='ignore'):
            return values.astype('<f2')
    if dtype == wire.FLOAT64:
        return elements.float64_to_bfloat16(values)
    return elements.float32_to_bfloat16(values)


def decode_into(codec, dtype, payload, out):
    """Decodes a bytes-like payload into `out`, a flat array in the storage type of `dtype`.

    ValueError, with nothing written, for a wrong size or a codec that cannot encode the type.
    """
    if not supports(codec, dtype):
        raise ValueError(f'a payload of {elements.NAMES.get(dtype, dtype)} in codec {codec}, which '
                         'this version of the package does not know')
    if codec in _LOSSY:
        with np.errstate(over='ignore', invalid='ignore'):
            out[:] = _DECODERS[codec](np.frombuffer(payload, dtype=np.uint8), out.size)
        return
    size = out.size * (2 if codec != wire.CODEC_RAW else out.itemsize)
    if len(payload) != size:
        raise ValueError(f'a payload of {len(payload)} bytes for a block that takes {size}')
    if codec == wire.CODEC_RAW:
        out[:] = np.frombuffer(payload, dtype=out.dtype)
    elif codec == wire.CODEC_FLOAT16:
        out[:] = np.frombuffer(payload, dtype='<f2')
    else:
        out[:] = elements.bfloat16_to_float32(np.frombuffer(payload, dtype='<u2'))


def _check_size(payload, size):
    if payload.size != size:
        raise ValueError(f'a payload of {payload.size} bytes for a block that takes {size}')


def _bytes(array):
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1)


def _groups(count, size):
    """(first element, groups, elements per group): the full groups, then the shorter one."""
    whole = count // size * size
    if whole:
        yield 0, whole // size, size
    if count > whole:
        yield whole, 1, count - whole


# ---- the largest elements


def _encode_top_k(values, options):
    count = values.size
    kept = min(count, math.ceil(options.fraction * count))
    head = np.array([kept], dtype='<u4')
    if kept == 0:
        return _bytes(head)
    # Sorts like the magnitudes; infinity is above all numbers, and NaN above infinity.
    magnitudes = values.view('<u4') & np.uint32(0x7fffffff)
    lowest = np.partition(magnitudes, count - kept)[count - kept]
    above = np.flatnonzero(magnitudes > lowest)
    ties = np.flatnonzero(magnitudes == lowest)[:kept - above.size]
    indices = np.sort(np.concatenate([above, ties])).astype('<u4')
    return np.concatenate([_bytes(head), _bytes(indices), _bytes(values[indices])])


def _decode_top_k(payload, count):
    if payload.size < 4:
        raise ValueError(f'a payload of {payload.size} bytes')
    kept = int(payload[:4].view('<u4')[0])
    if kept > count:
        raise ValueError(f'{kept} values for a block of {count}')
    _check_size(payload, 4 + 8 * kept)
    indices = payload[4:4 + 4 * kept].view('<u4').astype(np.int64)
    if kept and (indices[-1] >= count or np.any(np.diff(indices) <= 0)):
        raise ValueError('indices that are not ascending, or beyond the block')
    values = np.zeros(count, dtype='<f4')
    values[indices] = payload[4 + 4 * kept:].view('<f4')
    return values


# ---- 8 bits and a scale


def _encode_int8(values, options):
    del options
    parts = []
    for begin, groups, size in _groups(values.size, _INT8_GROUP):
        group = values[begin:begin + groups * size].reshape(groups, size)
        largest = np.abs(group).max(axis=1)
        scale = np.where(np.isfinite(largest), largest / np.float32(127),
                         np.float32(np.nan)).astype('<f4')
        level = np.clip(np.rint(group / scale[:, None]), np.float32(-127), np.float32(127))
        level = np.where((scale > 0)[:, None], level, np.float32(0))
        part = np.empty((groups, 4 + size), dtype=np.uint8)
        part[:, :4] = scale.view(np.uint8).reshape(groups, 4)
        part[:, 4:] = level.astype(np.int8).view(np.uint8)
        parts.append(part.reshape(-1))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8)


def _decode_int8(payload, count):
    _check_size(payload, count + (count + _INT8_GROUP - 1) // _INT8_GROUP * 4)
    values = np.empty(count, dtype='<f4')
    at = 0
    for begin, groups, size in _groups(count, _INT8_GROUP):
        part = payload[at:at + groups * (4 + size)].reshape(groups, 4 + size)
        at += part.size
        scale = np.ascontiguousarray(part[:, :4]).view('<f4')
        level = np.ascontiguousarray(part[:, 4:]).view(np.int8).astype('<f4')
        values[begin:begin + groups * size] = (level * scale).reshape(-1)
    return values


# ---- signs and two means


def _one_bit_bytes(count):
    return sum(groups * (8 + (size + 7) // 8) for _, groups, size in _groups(count, _ONE_BIT_GROUP))


def _mean(group, chosen):
    # A running sum adds in order, like C++; numpy's sum does not.
    total = np.cumsum(np.where(chosen, group, 0).astype('<f8'), axis=1)[:, -1]
    number = chosen.sum(axis=1)
    mean = np.where(number > 0, total / np.maximum(number, 1), 0).astype('<f4')
    return np.where(np.isnan(mean), np.float32(np.nan), mean).astype('<f4')


def _encode_one_bit(values, options):
    del options
    parts = []
    for begin, groups, size in _groups(values.size, _ONE_BIT_GROUP):
        group = values[begin:begin + groups * size].reshape(groups, size)
        negative = group < 0
        part = np.concatenate([
            _mean(group, ~negative).view(np.uint8).reshape(groups, 4),
            _mean(group, negative).view(np.uint8).reshape(groups, 4),
            np.packbits(negative, axis=1, bitorder='little')], axis=1)
        parts.append(part.reshape(-1))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8)


def _decode_one_bit(payload, count):
    _check_size(payload, _one_bit_bytes(count))
    if count % 8 and payload[-1] >> (count % 8):
        raise ValueError('signs of more elements than the block has')
    values = np.empty(count, dtype='<f4')
    at = 0
    for begin, groups, size in _groups(count, _ONE_BIT_GROUP):
        width = 8 + (size + 7) // 8
        part = payload[at:at + groups * width].reshape(groups, width)
        at += part.size
        means = np.ascontiguousarray(part[:, :8]).view('<f4')
        negative = np.unpackbits(part[:, 8:], axis=1, count=size, bitorder='little')
        values[begin:begin + groups * size] = np.where(
            negative == 1, means[:, 1:], means[:, :1]).reshape(-1)
    return values


# ---- the signs of elements beyond a threshold


def _encode_sign_threshold(values, options):
    threshold = np.array([options.threshold], dtype='<f4')
    codes = np.where(values > threshold, 1, np.where(values < -threshold, 2, 0)).astype(np.uint8)
    codes[~np.isfinite(values)] = 3
    quads = np.zeros((values.size + 3) // 4 * 4, dtype=np.uint8)
    quads[:values.size] = codes
    quads = quads.reshape(-1, 4)
    packed = quads[:, 0] | quads[:, 1] << 2 | quads[:, 2] << 4 | quads[:, 3] << 6
    return np.concatenate([_bytes(threshold), packed.astype(np.uint8)])


def _decode_sign_threshold(payload, count):
    _check_size(payload, 4 + (count + 3) // 4)
    if count % 4 and payload[-1] >> (2 * (count % 4)):
        raise ValueError('signs of more elements than the block has')
    threshold = payload[:4].view('<f4')[0]
    codes = (payload[4:, None] >> np.array([0, 2, 4, 6], dtype=np.uint8) & 3).reshape(-1)[:count]
    return np.array([0, threshold, -threshold, np.nan], dtype='<f4')[codes]


_ENCODERS = {
    wire.CODEC_TOP_K: _encode_top_k,
    wire.CODEC_INT8: _encode_int8,
    wire.CODEC_ONE_BIT: _encode_one_bit,
    wire.CODEC_SIGN_THRESHOLD: _encode_sign_threshold,
}
_DECODERS = {
    wire.CODEC_TOP_K: _decode_top_k,
    wire.CODEC_INT8: _decode_int8,
    wire.CODEC_ONE_BIT: _decode_one_bit,
    wire.CODEC_SIGN_THRESHOLD: _decode_sign_threshold,
}
