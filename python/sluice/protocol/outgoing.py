"""The queue of one stream's outgoing frames."""

import collections
import math
import queue
import time

from sluice.protocol import frame

_FIELDS_BYTES = 32  # upper bound of a frame's bytes besides header and payload


class Outgoing:
    """Queues frames and packs them into messages.

    If the peer accepts batches, all frames that wait when a message is taken are sent together. The
    thread that takes the messages encodes the frames.
    """

    def __init__(self, put=None):
        """`put(pieces, size)` passes a payload to the peer outside of the stream and returns its
        SharedPayload; None: send it in its frame."""
        self.peer_takes = 1  # how many frames it accepts in one message
        self._put = put
        self._added = queue.SimpleQueue()
        self.sent_at = -math.inf  # when the last message had been sent, by time.monotonic()

    def put(self, frames):
        """[(header, pieces)]. Pieces must not change until they are sent. Any thread."""
        self._added.put(frames)

    def end(self):
        """Frames that were put before are still sent."""
        self._added.put(None)

    def messages(self):
        waiting = collections.deque()  # (header, pieces, bytes of the payload)
        ended = False
        sent = False  # whether a message was taken
        while True:
            if sent and not waiting:
                self.sent_at = time.monotonic()  # the last message was sent

            while not ended:
                try:
                    added = self._added.get(block=not waiting)
                except queue.Empty:
                    break
                if added is None:
                    ended = True
                else:
                    waiting.extend((header, pieces, sum(map(len, pieces)))
                                   for header, pieces in added)

            if not waiting:
                return
            sent = True
            yield frame.join(self._take(waiting))

    def _take(self, waiting):
        batch = []
        total = 0
        most = max(1, min(self.peer_takes, frame.MAX_BATCH_FRAMES))
        while waiting and len(batch) < most:
            header, pieces, size = waiting[0]
            # Shared payloads count, too: otherwise the peer would start later.
            total += size + header.ByteSize() + _FIELDS_BYTES
            if batch and total > frame.MAX_BATCH_BYTES:
                break
            waiting.popleft()
            batch.append(self._encode(header, pieces, size))
        return batch

    def _encode(self, header, pieces, size):
        place = self._put(pieces, size) if self._put is not None and size else None
        if place is not None:
            return frame.shared_parts(header, place)
        return frame.parts(header, pieces)
