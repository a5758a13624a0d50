"""Payloads in memory that this process shares with a shard of its machine.

A payload is written once and read in place. Only its place is sent through the socket, which would
copy the payload twice and pass it through the kernel's network stack. Layout and rules:
docs/protocol.md, 3.1; in C++: services/transport/shared_memory.h and payload_sharing.h.

The memory has two halves, one for each direction. A half is a ring of granules: its sender takes
the next free ones for a payload, and gets them back, in order, when the receiver has cleared the
flag that the sender set. Neither side ever waits: without room a payload goes through the socket.
"""

import collections
import functools
import mmap
import os
import secrets
import threading

import numpy as np

from sluice import memory as memory_lib
from sluice.protocol import wire

GRANULE = 4096
# Twice the credit of a worker at a shard. Unused pages cost nothing.
HALF_BYTES = 32 << 20
# Smaller payloads are sent next to their headers.
LEAST_SHARED = 4096
_MAX_HALF_BYTES = 1 << 30
_FLAG = np.dtype('<u4')
_TOKEN_BYTES = 8


def _round_up(size):
    return -(-size // GRANULE) * GRANULE


def is_loopback(address):
    """Whether "127.0.0.1:80", "ipv6:[::1]:80" and the like are this machine."""
    if address.startswith('unix:'):
        return True
    for scheme in ('ipv4:', 'ipv6:'):
        if address.startswith(scheme):
            address = address[len(scheme):]
    return address.startswith(('127.', 'localhost:', '[::1]:', '%5B::1%5D:'))


class NotAPlace(ValueError):
    """A peer named an impossible piece of the memory; the message says which."""


class SharedMemory:
    """One end of a stream's shared memory.

    One thread may call `put`, and one may call `take`; what `take` returned may be released on any
    thread.
    """

    def __init__(self, memory, half_bytes, client):
        """`memory`: the whole file, bytes-like and writable."""
        flag_bytes = _round_up(half_bytes // GRANULE * _FLAG.itemsize)
        base = np.frombuffer(memory, dtype=np.uint8)
        flags = base[GRANULE:GRANULE + 2 * flag_bytes].view(_FLAG).reshape(2, -1)
        halves = base[GRANULE + 2 * flag_bytes:].reshape(2, half_bytes)
        mine = 0 if client else 1
        self.half_bytes = half_bytes
        self._flags, self._half = flags[mine], memory_lib.Bytes(halves[mine])
        self._peers_flags, self._peers_half = flags[1 - mine], halves[1 - mine]
        self._sent = collections.deque()  # (first granule, number of granules), in ring order
        self._next = 0                    # granule of the next piece, if it fits
        self._token = int.from_bytes(base[:_TOKEN_BYTES].tobytes(), 'little')
        self._descriptor = -1
        self._process = os.getpid()
        # Python has no fences, but releasing and acquiring a lock orders memory accesses, too. The
        # lock is reentrant, because objects may be released while it is held.
        self._order = threading.RLock()

    @staticmethod
    def file_bytes(half_bytes):
        return GRANULE + 2 * _round_up(half_bytes // GRANULE * _FLAG.itemsize) + 2 * half_bytes

    @classmethod
    def create(cls, half_bytes=HALF_BYTES):
        """The client's end. None if the system does not support such memory."""
        half_bytes = _round_up(half_bytes)
        if not 0 < half_bytes <= _MAX_HALF_BYTES:
            raise ValueError(f'shared memory of {half_bytes} bytes')

        try:
            import fcntl
            file = os.memfd_create('sluice-stream', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (ImportError, AttributeError, OSError):
            return None

        try:
            os.ftruncate(file, cls.file_bytes(half_bytes))
            # The peer may exit, but it cannot truncate the file under us.
            fcntl.fcntl(file, fcntl.F_ADD_SEALS,
                        fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            memory = _map(file, cls.file_bytes(half_bytes))
            memory[:_TOKEN_BYTES] = secrets.token_bytes(_TOKEN_BYTES)
            made = cls(memory, half_bytes, client=True)
        except (AttributeError, OSError):
            os.close(file)
            return None

        made._descriptor = file
        return made

    def offer(self):
        """The file's path, valid until the descriptor is closed; then None."""
        descriptor = self._descriptor
        if descriptor < 0:
            return None
        return wire.SharedMemory(pid=os.getpid(), file=descriptor, half_bytes=self.half_bytes,
                                 token=self._token)

    def close_descriptor(self):
        """The peer has opened the file, or will not: it is no longer needed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def put(self, pieces, size):
        """Copies bytes-like pieces, `size` bytes in total, into the memory that the peer reads.

        Returns their SharedPayload; None: there is no room now.
        """
        first = self._allocate(-(-size // GRANULE))
        if first is None:
            return None
        at = first * GRANULE
        for piece in pieces:
            self._half.copy(at, piece)
            at += len(piece)
        with self._order:
            pass  # orders the bytes before the flag and before their place is sent
        self._flags[first] = 1
        return wire.SharedPayload(offset=first * GRANULE, bytes=size)

    def take(self, place):
        """A memoryview of the peer's bytes, which it may change at any time. Raises NotAPlace."""
        offset, size = place.offset, place.bytes
        if not size or offset % GRANULE or offset + size > self.half_bytes:
            raise NotAPlace(f'a payload of {size} bytes at {offset} of {self.half_bytes} bytes of '
                            'shared memory')
        with self._order:
            pass  # orders reads after the place was received
        # Lent views keep the memory mapped until the last of them is released.
        return memory_lib.lend(self._peers_half[offset:offset + size],
                               functools.partial(self._give_back, offset // GRANULE))

    def used_granules(self):
        """How many granules this end's payloads occupy."""
        self._reclaim()
        return sum(count for _, count in self._sent)

    def _give_back(self, granule):
        if os.getpid() != self._process:
            return  # a forked process has only a copy of the reference
        with self._order:
            pass  # orders all reads before
        self._peers_flags[granule] = 0

    def _reclaim(self):
        while self._sent and not self._flags[self._sent[0][0]]:
            self._sent.popleft()
        if not self._sent:
            self._next = 0  # start again at memory that is still in the caches

    def _allocate(self, count):
        self._reclaim()
        granules = self.half_bytes // GRANULE
        oldest = self._sent[0][0] if self._sent else granules
        first = self._next
        if self._sent and first <= oldest:  # the ring has wrapped: room up to the oldest piece
            if oldest - first < count:
                return None
        elif granules - first < count:
            if not self._sent or oldest < count:
                return None
            first = 0
        self._sent.append((first, count))
        self._next = first + count
        return first


def _map(file, size):
    try:
        return mmap.mmap(file, size, trackfd=False)
    except TypeError:  # before Python 3.13, where mmap keeps its own descriptor
        return mmap.mmap(file, size)


class PayloadSharing:
    """How one stream's payloads are sent: through shared memory if both ends are on one machine and
    agree on it, else with their frames."""

    def __init__(self, address, wanted=True):
        """Offers memory if `address` is this machine's."""
        self._memory = SharedMemory.create() if wanted and is_loopback(address) else None
        self.active = False  # both ends use it

    def greet(self, hello):
        memory = self._memory
        offer = memory and memory.offer()
        if offer is not None:
            hello.shared_memory.CopyFrom(offer)

    def on_hello_reply(self, reply):
        memory = self._memory
        if memory is not None:
            memory.close_descriptor()
            self.active = reply.shared_memory_taken

    def put(self, pieces, size):
        """Writes pieces to the memory and returns their SharedPayload; None: send them in their
        frame."""
        memory = self._memory
        if memory is None or not self.active or size <= LEAST_SHARED:
            return None
        return memory.put(pieces, size)

    def take(self, place):
        # The message with the reply to an offer may already contain shared payloads.
        memory = self._memory
        if memory is None:
            raise NotAPlace('a payload in shared memory, but none was agreed on')
        return memory.take(place)

    def close(self):
        """The stream has ended. The memory is unmapped with the last payload in it."""
        self.active = False
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close_descriptor()
