"""A worker's stream to one shard: greeting, credit and retries.

waiting -> connecting -> greeting -> ready; from each back to waiting when the stream breaks. See
services/worker/core/shard_link.h.
"""

import collections
import enum
import math

from sluice.protocol import actions

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


class _State(enum.Enum):
    WAITING = 0
    CONNECTING = 1
    GREETING = 2
    READY = 3


class ShardLink:

    def __init__(self, shard, address, now):
        self.id = shard
        self.address = address
        self.queued_bytes = 0
        self._state = _State.WAITING
        self._retry_at = now
        self._failures = 0
        self._window = 0
        self._credit = 0
        self._queue = collections.deque()

    @property
    def ready(self):
        return self._state is _State.READY

    def tick(self, now, out):
        if self._state is _State.WAITING and now >= self._retry_at:
            self._state = _State.CONNECTING
            out.append(actions.ConnectShard(self.id, self.address))

    def next_deadline(self):
        return self._retry_at if self._state is _State.WAITING else math.inf

    def on_connected(self, hello, out):
        if self._state is _State.CONNECTING:
            self._state = _State.GREETING
            out.append(actions.SendFrame(self.id, hello, []))

    def on_hello_reply(self, reply):
        """Returns False if the message is not expected now."""
        if self._state is not _State.GREETING:
            return False
        self._state = _State.READY
        self._failures = 0
        self._window = self._credit = reply.window_bytes
        return True

    def on_broken(self, now):
        self.drop_queue()
        self._state = _State.WAITING
        self._retry_at = now + min(_FIRST_PAUSE * 2**min(self._failures, 10), _LONGEST_PAUSE)
        self._failures += 1

    def reset(self, reason, now, out):
        self.close(reason, out)
        self.on_broken(now)

    def close(self, reason, out):
        if self._state is not _State.WAITING:
            out.append(actions.DisconnectShard(self.id, reason))
        self._state = _State.WAITING
        self._retry_at = math.inf
        self.drop_queue()

    def send(self, header, pieces, out):
        if not self.ready:
            return
        size = 0
        for piece in pieces:
            size += piece.nbytes
        if not self._queue and size <= self._credit:
            self._credit -= size
            out.append(actions.SendFrame(self.id, header, pieces))
            return
        self.queued_bytes += size
        self._queue.append((header, pieces, size))
        self._pump(out)

    def on_credit(self, count, out):
        self._credit = min(self._window, self._credit + count)
        self._pump(out)

    def drop_queue(self):
        """Drops frames that were not sent; they are of an older view."""
        self._queue.clear()
        self.queued_bytes = 0

    def _pump(self, out):
        while self.ready and self._queue:
            header, pieces, size = self._queue[0]
            # A frame that is larger than the window is sent alone.
            if size > self._credit < self._window:
                return
            self._credit -= min(size, self._credit)
            self.queued_bytes -= size
            self._queue.popleft()
            out.append(actions.SendFrame(self.id, header, pieces))
