"""Encodes `message Frame` (docs/protocol.md 3.1), as an attacker would."""


def varint(value):
    out = bytearray()
    while value > 0x7f:
        out.append(value & 0x7f | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(header, pieces=()):
    """A message of one frame; its payload is the pieces, one after the other."""
    content = header.SerializeToString()
    payload = b''.join(pieces)
    encoded = b'\x0a' + varint(len(content)) + content
    return encoded + b'\x12' + varint(len(payload)) + payload if payload else encoded


def batch(frames):
    """A message of several encoded frames."""
    return b''.join(b'\x1a' + varint(len(frame)) + frame for frame in frames)
