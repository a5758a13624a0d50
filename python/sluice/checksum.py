"""CRC-32C (Castagnoli, RFC 3720 appendix B.4), the checksum of each file in manifests.

A file is split into lanes of equal length, whose checksums NumPy computes in parallel. Checksums
are linear: that of two lanes is the first lane's, shifted by the second lane's length, plus the
second lane's (like zlib's crc32_combine).
"""

import numpy as np

_POLYNOMIAL = 0x82F63B78
_LANE = 1024  # a power of 2


def _make_table():
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


_TABLE = _make_table()
_TABLE_LIST = _TABLE.tolist()


def _apply(shift, values):
    """`shift` maps each of the 32 bits to its shifted value."""
    result = np.zeros_like(values)
    for bit in range(32):
        result ^= np.where(values >> np.uint32(bit) & np.uint32(1), shift[bit], np.uint32(0))
    return result


def _lanes(data):
    """The bare checksum (begun at 0) of a whole number of lanes."""
    columns = np.ascontiguousarray(data.reshape(-1, _LANE).T)
    values = np.zeros(columns.shape[1], dtype=np.uint32)
    for column in columns:
        values = _TABLE[(values ^ column) & np.uint32(0xFF)] ^ (values >> np.uint32(8))
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    shift = _TABLE[bits & np.uint32(0xFF)] ^ (bits >> np.uint32(8))  # by one byte
    length = 1
    while length < _LANE:
        shift, length = _apply(shift, shift), length * 2
    while values.size > 1:
        if values.size % 2:
            # A leading zero changes nothing.
            values = np.concatenate([np.zeros(1, dtype=np.uint32), values])
        values = _apply(shift, values[0::2]) ^ values[1::2]
        shift = _apply(shift, shift)
    return int(values[0])


def crc32c(content):
    """The checksum of bytes, or of any object with a buffer."""
    data = np.frombuffer(content, dtype=np.uint8)
    crc = 0xFFFFFFFF
    whole = data.size - data.size % _LANE
    if whole:
        begun = data[:whole].copy()
        begun[:4] ^= 0xFF  # begins at all ones
        crc = _lanes(begun)
    for byte in data[whole:].tolist():
        crc = _TABLE_LIST[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF
