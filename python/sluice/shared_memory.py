"""Payloads that lie in memory which this process shares with a shard of its machine.

They are put there once and read where they lie; only their place travels through the socket, which
would copy them twice and pass the kernel's network. Layout and rules: docs/protocol.md, 3.1; the
same in C++: services/transport/shared_memory.h and payload_sharing.h.

Two halves, one for each direction. A half is a ring of granules: its sender takes the next free
ones for a payload, and has them back, in order, when the receiver has cleared the flag that the
sender set. Nobody ever waits: without room a payload goes through the socket.
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
# Twice what a shard lets a worker have under way. Pages that are never used cost nothing.
HALF_BYTES = 32 << 20
# Smaller payloads travel next to their headers anyway.
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
    """A peer names a piece of the memory that cannot be one; the message says which."""


class SharedMemory:
    """One end of a stream's memory.

    `put` is for one thread, `take` for one too; what `take` gave may end on any.
    """

    def __init__(self, memory, half_bytes, client):
        """`memory`: of the whole file, bytes-like and writable."""
        flag_bytes = _round_up(half_bytes // GRANULE * _FLAG.itemsize)
        base = np.frombuffer(memory, dtype=np.uint8)
        flags = base[GRANULE:GRANULE + 2 * flag_bytes].view(_FLAG).reshape(2, -1)
        halves = base[GRANULE + 2 * flag_bytes:].reshape(2, half_bytes)
        mine = 0 if client else 1
        self.half_bytes = half_bytes
        self._flags, self._half = flags[mine], memory_lib.Bytes(halves[mine])
        self._peers_flags, self._peers_half = flags[1 - mine], halves[1 - mine]
        self._sent = collections.deque()  # (first granule, granules), in the order of the ring
        self._next = 0                    # granule where the next piece goes, if it fits
        self._token = int.from_bytes(base[:_TOKEN_BYTES].tobytes(), 'little')
        self._descriptor = -1
        self._process = os.getpid()
        # Python has no fence. A release and the next acquisition of a lock order what is before
        # them and behind them as well. Reentrant: whatever ends may end while it is held.
        self._order = threading.RLock()

    @staticmethod
    def file_bytes(half_bytes):
        return GRANULE + 2 * _round_up(half_bytes // GRANULE * _FLAG.itemsize) + 2 * half_bytes

    @classmethod
    def create(cls, half_bytes=HALF_BYTES):
        """The client's end. None where the system gives no such memory."""
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
            # A peer can end, but not take the memory away.
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
        """Holds as long as the descriptor is not closed; then None."""
        descriptor = self._descriptor
        if descriptor < 0:
            return None
        return wire.SharedMemory(pid=os.getpid(), file=descriptor, half_bytes=self.half_bytes,
                                 token=self._token)

    def close_descriptor(self):
        """The peer has opened it, or will not: nothing needs the file any more."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def put(self, pieces, size):
        """Copies bytes-like pieces, `size` bytes together, to where the peer reads them.

        Their SharedPayload; None: there is no room now.
        """
        first = self._allocate(-(-size // GRANULE))
        if first is None:
            return None
        at = first * GRANULE
        for piece in pieces:
            self._half.copy(at, piece)
            at += len(piece)
        with self._order:
            pass  # the bytes are there before the flag, and before their place is told
        self._flags[first] = 1
        return wire.SharedPayload(offset=first * GRANULE, bytes=size)

    def take(self, place):
        """A memoryview of what the peer has put there, and may change at any time. NotAPlace."""
        offset, size = place.offset, place.bytes
        if not size or offset % GRANULE or offset + size > self.half_bytes:
            raise NotAPlace(f'a payload of {size} bytes at {offset} of {self.half_bytes} bytes of '
                            'shared memory')
        with self._order:
            pass  # nothing is read ahead of the place
        # What is lent holds the memory: that is unmapped when nothing refers to it any more.
        return memory_lib.lend(self._peers_half[offset:offset + size],
                               functools.partial(self._give_back, offset // GRANULE))

    def used_granules(self):
        """Of what this end has sent."""
        self._reclaim()
        return sum(count for _, count in self._sent)

    def _give_back(self, granule):
        if os.getpid() != self._process:
            return  # a fork of it has only a copy of the reference
        with self._order:
            pass  # everything was read before
        self._peers_flags[granule] = 0

    def _reclaim(self):
        while self._sent and not self._flags[self._sent[0][0]]:
            self._sent.popleft()
        if not self._sent:
            self._next = 0  # begin again where the caches still know the memory

    def _allocate(self, count):
        self._reclaim()
        granules = self.half_bytes // GRANULE
        oldest = self._sent[0][0] if self._sent else granules
        first = self._next
        if self._sent and first <= oldest:  # the ring goes round: room up to the oldest
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
    except TypeError:  # before Python 3.13: it keeps a descriptor of its own as long as it lives
        return mmap.mmap(file, size)


class PayloadSharing:
    """How one stream's payloads travel: through memory, where both ends are processes of one
    machine and agree on it, else with their frames."""

    def __init__(self, address, wanted=True):
        """Offers memory if `address` is this machine's."""
        self._memory = SharedMemory.create() if wanted and is_loopback(address) else None
        self.active = False  # both have it

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
        """The SharedPayload of what went there; None: it goes with its frame."""
        memory = self._memory
        if memory is None or not self.active or size <= LEAST_SHARED:
            return None
        return memory.put(pieces, size)

    def take(self, place):
        # Who has offered memory may find data in it in the very message that brings the reply.
        memory = self._memory
        if memory is None:
            raise NotAPlace('a payload in shared memory, but none was agreed on')
        return memory.take(place)

    def close(self):
        """The stream has ended. The memory goes with the last payload that lies in it."""
        self.active = False
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close_descriptor()
