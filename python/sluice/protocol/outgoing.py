"""What waits to be sent on one stream of frames."""

import collections
import queue

from sluice.protocol import frame


class Outgoing:
    """Frames that wait to be sent, and the messages that they go out in.

    What waits when a message's turn comes goes out together, to a peer that takes batches. Frames
    are encoded by whoever takes the messages.
    """

    def __init__(self):
        self.peer_takes = 1  # frames in one message
        self._added = queue.SimpleQueue()

    def put(self, frames):
        """[(header, pieces)]. Pieces must stay as they are until they have gone out. Any thread."""
        self._added.put(frames)

    def end(self):
        """What was put before still goes out."""
        self._added.put(None)

    def messages(self):
        waiting = collections.deque()  # of frame.parts
        ended = False
        while True:
            while not ended:
                try:
                    added = self._added.get(block=not waiting)
                except queue.Empty:
                    break
                if added is None:
                    ended = True
                else:
                    waiting.extend(frame.parts(*each) for each in added)
            if not waiting:
                return
            yield frame.join(self._take(waiting))

    def _take(self, waiting):
        batch = [waiting.popleft()]
        size = batch[0][1]
        most = min(self.peer_takes, frame.MAX_BATCH_FRAMES)
        while waiting and len(batch) < most:
            size += waiting[0][1]
            if size > frame.MAX_BATCH_BYTES:
                break
            batch.append(waiting.popleft())
        return batch
