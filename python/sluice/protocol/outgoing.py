"""What waits to be sent on one stream of frames."""

import collections
import math
import queue
import time

from sluice.protocol import frame

_FIELDS_BYTES = 32  # at most, of a frame, beside header and payload


class Outgoing:
    """Frames that wait to be sent, and the messages that they go out in.

    What waits when a message's turn comes goes out together, to a peer that takes batches. Frames
    are encoded by whoever takes the messages.
    """

    def __init__(self, put=None):
        """`put(pieces, size)`: brings a payload to the peer another way and gives its
        SharedPayload; None: it is to go with its frame."""
        self.peer_takes = 1  # frames in one message
        self._put = put
        self._added = queue.SimpleQueue()
        self.sent_at = -math.inf  # when the last message was out, by time.monotonic()

    def put(self, frames):
        """[(header, pieces)]. Pieces must stay as they are until they have gone out. Any thread."""
        self._added.put(frames)

    def end(self):
        """What was put before still goes out."""
        self._added.put(None)

    def messages(self):
        waiting = collections.deque()  # of (header, pieces, bytes of the payload)
        ended = False
        sent = False  # a message
        while True:
            if sent and not waiting:
                self.sent_at = time.monotonic()  # who asks for the next message has sent the last
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
            # Counted alike when the payload goes another way: the peer begins with what it has.
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
