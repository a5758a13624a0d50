"""What waits to be sent on one stream of frames."""

import collections
import threading

from sluice.protocol import frame


class Outgoing:
    """Encoded frames that wait to be sent, and the messages that they go out in.

    What waits when a message's turn comes goes out together, to a peer that takes batches.
    """

    def __init__(self):
        self.peer_takes = 1  # frames in one message
        self._changed = threading.Condition()
        self._frames = collections.deque()
        self._ended = False

    def put(self, encoded):
        with self._changed:
            self._frames.append(encoded)
            self._changed.notify()

    def end(self):
        """What was put before still goes out."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def messages(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._frames or self._ended)
                if not self._frames:
                    return
                batch = self._take()
            yield frame.encode_batch(batch)

    def _take(self):
        batch = [self._frames.popleft()]
        size = len(batch[0])
        most = min(self.peer_takes, frame.MAX_BATCH_FRAMES)
        while self._frames and len(batch) < most:
            size += len(self._frames[0])
            if size > frame.MAX_BATCH_BYTES:
                break
            batch.append(self._frames.popleft())
        return batch
