"""Reads and writes files of the format safetensors (https://github.com/huggingface/safetensors).

The reader accepts what the reference reader (safetensors 0.8.0) accepts; tests/vectors/safetensors.json has the
cases.
"""

import json
import math
import struct
import typing

from sluice import errors

METADATA = '__metadata__'
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_MAX_NUMBER = 2**64 - 1
_FIELDS = ('dtype', 'shape', 'data_offsets')
_ALIGNMENT = 64  # of the first array that `write` writes
# Bits of an element.
BITS = {'BOOL': 8, 'F4': 4, 'F6_E2M3': 6, 'F6_E3M2': 6, 'U8': 8, 'I8': 8, 'F8_E5M2': 8, 'F8_E4M3': 8,
         'F8_E8M0': 8, 'F8_E4M3FNUZ': 8, 'F8_E5M2FNUZ': 8, 'I16': 16, 'U16': 16, 'F16': 16, 'BF16': 16,
         'I32': 32, 'U32': 32, 'F32': 32, 'C64': 64, 'F64': 64, 'I64': 64, 'U64': 64}


class Array(typing.NamedTuple):
    name: str
    kind: str  # the format's name of the type: "F32"
    shape: typing.List[int]
    data: memoryview  # row-major, little endian; F4 and F6 are packed


class _Object(dict):
    """A JSON object that knows which of its keys came twice. The last value counts."""

    def __init__(self, pairs):
        super().__init__(pairs)
        seen = set()
        self.repeated = {key for key, _ in pairs if key in seen or seen.add(key)}


def read(path: typing.Any, content: bytes) -> typing.Tuple[typing.Dict[str, str], typing.List[Array]]:
    """(metadata, arrays in the order of their bytes). Raises SluiceError, which names the file and the
    array."""
    try:
        return _read(content)
    except (ValueError, RecursionError, struct.error) as error:
        raise errors.SluiceError(f'{path} is not a whole safetensors file: {error}') from error


def _read(content):
    (length,) = struct.unpack('<Q', content[:8])
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f'its header has {length:,} bytes: the format allows {_MAX_HEADER_BYTES:,}')
    if 8 + length > len(content):
        raise ValueError('its header is longer than the file')
    header = json.loads(content[8:8 + length].decode(), object_pairs_hook=_Object, parse_int=_integer,
                        parse_constant=_no_constant)
    if not isinstance(header, _Object):
        raise ValueError('its header is not an object')

    metadata = _metadata(header)
    data = memoryview(content)[8 + length:]
    found = sorted((_entry(name, entry, len(data)) for name, entry in header.items() if name != METADATA),
                   key=lambda found: found[3])

    arrays = []
    place = 0
    for name, kind, shape, (begin, end) in found:
        if begin != place:
            raise ValueError(f"array '{name}' begins at byte {begin} of the data, not at {place}: arrays have "
                             'no bytes in common and none between them')
        place = end
        arrays.append(Array(name, kind, shape, data[begin:end]))
    if place != len(data):
        raise ValueError(f'{len(data) - place} bytes behind its last array are of no array')
    return metadata, arrays


def _integer(text):
    return -0.0 if text == '-0' else int(text)


def _no_constant(text):
    raise ValueError(f'its header has {text}, which is not JSON')


def _metadata(header):
    if METADATA in header.repeated:
        raise ValueError(f'it has {METADATA} twice')
    metadata = header.get(METADATA) or {}
    if header.get(METADATA) not in (None, metadata) or not isinstance(metadata, dict) or not all(
            isinstance(value, str) for value in metadata.values()):
        raise ValueError(f'{METADATA} is not a map of texts')
    return dict(metadata)


def _entry(name, entry, size):
    """(name, type, shape, (begin, end)) of an entry of the header."""

    def check(right, what):
        if not right:
            raise ValueError(f"array '{name}': {what}")

    def is_size(number):
        return type(number) is int and 0 <= number <= _MAX_NUMBER

    name.encode()  # raises UnicodeEncodeError, a ValueError, for half a character
    check(isinstance(entry, _Object) and all(field in entry for field in _FIELDS),
          'dtype, shape or data_offsets is missing')
    check(not entry.repeated.intersection(_FIELDS), 'it has dtype, shape or data_offsets twice')

    kind, shape, offsets = (entry[field] for field in _FIELDS)
    check(isinstance(kind, str) and kind in BITS, f'unknown dtype {kind}')
    check(isinstance(shape, list) and all(map(is_size, shape)), 'its shape is not a list of sizes')
    check(isinstance(offsets, list) and len(offsets) == 2 and all(map(is_size, offsets)),
          'data_offsets are not two numbers')
    begin, end = offsets
    check(begin <= end <= size, 'it is outside of the file')

    elements = 1
    for extent in shape:
        elements *= extent
        check(elements <= _MAX_NUMBER, 'its shape has more than 2^64 elements')
    bits = elements * BITS[kind]
    check(bits <= _MAX_NUMBER, 'its shape has more than 2^64 bits')
    check(bits % 8 == 0, f'its {elements} elements of {BITS[kind]} bits are not whole bytes')
    check(bits // 8 == end - begin, f'it has {end - begin} bytes, and its shape {bits // 8}')
    return name, kind, shape, (begin, end)


def write(arrays: typing.Iterable[Array], metadata: typing.Dict[str, str]) -> bytes:
    """The file's content, with the arrays in this order."""
    header: typing.Dict[str, typing.Any] = {METADATA: metadata}
    data = []
    place = 0
    for array in arrays:
        content = bytes(array.data)
        header[array.name] = {'dtype': array.kind, 'shape': list(array.shape),
                              'data_offsets': [place, place + len(content)]}
        data.append(content)
        place += len(content)
    text = json.dumps(header).encode()
    text += b' ' * (-(8 + len(text)) % _ALIGNMENT)
    return struct.pack('<Q', len(text)) + text + b''.join(data)


def decode_float8(kind: str) -> typing.List[float]:
    """The numbers that the 256 bytes of a type with 8 bits represent (OCP OFP8, and the FNUZ variants of
    LLVM, which have one NaN, no infinity and no negative zero)."""
    if kind == 'F8_E8M0':  # an exponent alone
        return [2.0**(byte - 127) for byte in range(255)] + [math.nan]
    exponent_bits = 4 if 'E4M3' in kind else 5
    fraction_bits = 7 - exponent_bits
    fnuz = kind.endswith('FNUZ')
    bias = 2**(exponent_bits - 1) - (0 if fnuz else 1)
    numbers = []
    for byte in range(256):
        sign = -1.0 if byte >= 128 else 1.0
        exponent, fraction = divmod(byte % 128, 2**fraction_bits)
        if exponent == 0:
            number = fraction * 2.0**(1 - bias - fraction_bits)
        else:
            number = (1 + fraction / 2**fraction_bits) * 2.0**(exponent - bias)
        if fnuz and byte == 128 or kind == 'F8_E4M3' and byte % 128 == 127:
            number = math.nan
        elif kind == 'F8_E5M2' and exponent == 31:
            number = math.nan if fraction else math.inf
        numbers.append(sign * number)
    return numbers
