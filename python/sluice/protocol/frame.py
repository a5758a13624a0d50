"""Encodes and decodes `message Frame`, copying the payload at most once.

A message is one frame, or a batch of several. A payload may be in shared memory: then only its
place is sent.

services/transport/frame_wire.h is the C++ counterpart.
"""

from sluice.protocol import wire

MAX_PAYLOAD_BYTES = 2 << 20
MAX_HEADER_BYTES = (64 << 10) - 64
MAX_FRAME_BYTES = MAX_PAYLOAD_BYTES + (64 << 10)
MAX_BATCH_FRAMES = 256  # that are accepted in one message
# Beyond this size another batch is begun. Larger than in C++, because a message costs Python more:
# four threads pass it on.
MAX_BATCH_BYTES = 1 << 20

_HEADER_TAG = 1 << 3 | 2
_PAYLOAD_TAG = 2 << 3 | 2
_BATCH_TAG = 3 << 3 | 2
_PLACE_TAG = 4 << 3 | 2
_MAX_PLACE_BYTES = 128  # of an encoded SharedPayload, with room for fields of a later version
_FIXED_BYTES = {1: 8, 5: 4}
# Codecs whose payloads are plain arrays of numbers.
_ARRAYS = (wire.CODEC_RAW, wire.CODEC_FLOAT16, wire.CODEC_BFLOAT16)


class MalformedFrame(ValueError):
    """A peer's bytes are not a frame; the message names the position."""


def _varint(value):
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 0x7f | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7f:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_prefix(header, payload_bytes):
    """The bytes before the payload's bytes."""
    content = header.SerializeToString()
    prefix = b'\x0a' + _varint(len(content)) + content
    if payload_bytes > 0:
        prefix += b'\x12' + _varint(payload_bytes)
    return prefix


def encode(header, pieces=()):
    """The whole frame. The payload is the concatenation of the bytes-like pieces."""
    return join([parts(header, pieces)])


def parts(header, pieces=()):
    """Returns (parts, size) of a frame: its prefix and the pieces, which are not copied."""
    size = 0
    for piece in pieces:
        size += len(piece)
    prefix = encode_prefix(header, size)
    return [prefix, *pieces], len(prefix) + size


def shared_parts(header, place):
    """Like `parts`, for a frame whose payload is at `place`, a SharedPayload."""
    content = place.SerializeToString()
    encoded = encode_prefix(header, 0) + b'\x22' + _varint(len(content)) + content
    return [encoded], len(encoded)


def join(frames):
    """The message of frames that are given as their `parts`, in order; each byte is copied once."""
    if len(frames) == 1:
        return b''.join(frames[0][0])
    pieces = []
    for its, size in frames:
        pieces.append(b'\x1a' + _varint(size))
        pieces += its
    return b''.join(pieces)


def _read_varint(data, at):
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(data):
            raise MalformedFrame(f'malformed frame: it ends within a number at byte {at}')
        byte = data[at]
        at += 1
        if shift == 63 and byte & 0x7f > 1:
            raise MalformedFrame(f'malformed frame: a number has more than 64 bits at byte {at}')
        value |= (byte & 0x7f) << shift
        if not byte & 0x80:
            return value, at
    raise MalformedFrame(f'malformed frame: a number has more than 10 bytes at byte {at}')


def _field_end(data, tag, at):
    """The begin and end of a field's content, after its tag was read."""
    kind = tag & 7
    if kind == 0:
        return at, _read_varint(data, at)[1]
    if kind == 2:
        length, at = _read_varint(data, at)
    elif kind in _FIXED_BYTES:
        length = _FIXED_BYTES[kind]
    else:
        raise MalformedFrame(f'malformed frame: a field of wire type {kind} at byte {at}')
    if length > len(data) - at:
        raise MalformedFrame(f'malformed frame: a field of {length} bytes, of which '
                             f'{len(data) - at} are there, at byte {at}')
    return at, at + length


def decode(data, take=None):
    """Returns (header, payload as a memoryview of `data`) of one frame that a peer sent.

    Fields may be in any order, unknown ones are skipped, and a missing header is an empty one.
    MalformedFrame for anything that is not such a message, exceeds a limit, has a payload whose
    length is not the sum of the header's blocks, or is a batch.

    `take` returns the memoryview of a SharedPayload, or raises ValueError; None: shared memory was
    not agreed on. The peer may change those bytes at any time, so everything except arrays of
    numbers is copied first.
    """
    header, payload, batch = _decode_fields(data, take)
    if batch:
        raise MalformedFrame('malformed frame: a batch in place of one frame')
    return header, payload


def decode_all(data, take=None):
    """[(header, payload), ...] of a whole message: a batch, or one frame."""
    header, payload, batch = _decode_fields(data, take)
    if not batch:
        return [(header, payload)]
    frames = []
    for number, encoded in enumerate(batch):
        try:
            frames.append(decode(encoded, take))
        except MalformedFrame as error:
            raise MalformedFrame(f'frame {number} of a batch: {error}') from error
    return frames


def _decode_fields(data, take):
    """Header, payload, and the frames of a batch, still encoded."""
    view = memoryview(data)
    usual = _decode_usual(view, take)
    if usual is not None:
        return *usual, []

    header = None
    payload = None
    place = None
    batch = []
    at = 0
    while at < len(view):
        tag, at = _read_varint(view, at)
        if tag >> 3 == 0 or tag > 0xffffffff:
            raise MalformedFrame(f'malformed frame: the impossible tag {tag} at byte {at}')
        begin, end = _field_end(view, tag, at)
        if tag == _HEADER_TAG:
            if header is not None:
                raise MalformedFrame(f'malformed frame: a second header at byte {at}')
            header = _parse_header(view[begin:end], at)
        elif tag == _PAYLOAD_TAG:
            if payload is not None:
                raise MalformedFrame(f'malformed frame: a second payload at byte {at}')
            payload = view[begin:end]
            if len(payload) > MAX_PAYLOAD_BYTES:
                raise MalformedFrame(f'malformed frame: a payload of {len(payload)} bytes, over '
                                     f'the limit of {MAX_PAYLOAD_BYTES}, at byte {at}')
        elif tag == _PLACE_TAG:
            if place is not None:
                raise MalformedFrame(
                    f'malformed frame: a second place of a payload at byte {at}')
            place = _parse_place(view[begin:end], at)
        elif tag == _BATCH_TAG:
            if len(batch) == MAX_BATCH_FRAMES:
                raise MalformedFrame(
                    f'malformed frame: more than {MAX_BATCH_FRAMES} frames at byte {at}')
            batch.append(view[begin:end])
        elif tag >> 3 in (1, 2, 3, 4):
            raise MalformedFrame(
                f'malformed frame: field {tag >> 3} of wire type {tag & 7} at byte {at}')
        at = end

    if batch and (header is not None or payload is not None or place is not None):
        raise MalformedFrame('malformed frame: a batch beside a header or payload')

    header = wire.Header() if header is None else header
    if place is not None:
        if payload is not None:
            raise MalformedFrame('malformed frame: a payload beside the place of one')
        payload = _take_shared(header, place, take)

    payload = view[:0] if payload is None else payload
    check_payload_size(header, len(payload))
    return header, payload, batch


def _decode_usual(view, take):
    """A fast path of `decode` for frames made by `encode`; None: use the general path."""
    size = len(view)
    if size < 2 or view[0] != _HEADER_TAG:
        return None

    length, at = _read_varint(view, 1)
    end = at + length
    if length > MAX_HEADER_BYTES or end > size:
        return None

    if end == size:
        kind, begin = None, end
    else:
        kind = view[end]
        length, begin = _read_varint(view, end + 1)
        if begin + length != size or length > MAX_PAYLOAD_BYTES:
            return None

    if kind not in (None, _PAYLOAD_TAG, _PLACE_TAG):
        return None

    header = _parse_header(view[at:end], at)
    payload = view[begin:]
    if kind == _PLACE_TAG:
        payload = _take_shared(header, _parse_place(payload, begin), take)
    check_payload_size(header, len(payload))
    return header, payload


def _parse_place(content, at):
    if len(content) > _MAX_PLACE_BYTES:
        raise MalformedFrame(f'malformed frame: a place of a payload of {len(content)} bytes, over '
                             f'the limit of {_MAX_PLACE_BYTES}, at byte {at}')
    try:
        place = wire.SharedPayload.FromString(bytes(content))
    except Exception as error:  # the class depends on protobuf's implementation
        raise MalformedFrame(
            f'malformed frame: an invalid place of a payload at byte {at}') from error
    if place.bytes > MAX_PAYLOAD_BYTES:
        raise MalformedFrame(f'malformed frame: a payload of {place.bytes} bytes, over the limit '
                             f'of {MAX_PAYLOAD_BYTES}, at byte {at}')
    return place


def _take_shared(header, place, take):
    if take is None:
        raise MalformedFrame('malformed frame: a payload in shared memory, of which none was '
                             'agreed on')
    try:
        payload = take(place)
    except ValueError as error:
        raise MalformedFrame(f'malformed frame: {error}') from error
    blocks = blocks_of(header)
    if blocks and all(block.codec in _ARRAYS for block in blocks):
        return payload
    return memoryview(bytes(payload))


def _parse_header(content, at):
    if len(content) > MAX_HEADER_BYTES:
        raise MalformedFrame(f'malformed frame: a header of {len(content)} bytes, over the limit '
                             f'of {MAX_HEADER_BYTES}, at byte {at}')
    try:
        return wire.Header.FromString(bytes(content))
    except Exception as error:  # the class depends on protobuf's implementation
        raise MalformedFrame(
            f'malformed frame: an invalid header at byte {at}') from error


def blocks_of(header):
    """The block headers of a body, if it has any."""
    body = header.WhichOneof('body')
    if body in ('push', 'init_push', 'data'):
        return getattr(header, body).blocks
    return ()


def check_payload_size(header, payload_bytes):
    total = sum(block.payload_bytes for block in blocks_of(header))
    if total != payload_bytes:
        raise MalformedFrame(f'malformed frame: a payload of {payload_bytes} bytes, and blocks of '
                             f'{total}')
