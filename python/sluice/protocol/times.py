"""Splits the time from a step's last gradient to the next version.

  last gradient --push--> everything was sent --wait--> first data --pull--> all data

See services/worker/core/step_times.h.
"""

import math


class StepTimes:
    """The times of one step, or of one asynchronous update and the pull after it. Each view starts
    a new one."""

    def __init__(self):
        # Infinite: has not happened yet.
        self.computed = math.inf  # the last gradient was computed
        self.given = math.inf  # everything was given to the streams, and nothing waits for credit
        self._pushed = math.inf
        self._data = math.inf
        self.whole = math.inf

    def on_answered(self, now, sent):
        """Frames sent from now on do not belong to this contribution. `sent`: when the send queues
        were last empty."""
        if self._pushed == math.inf and self.given != math.inf:
            self._pushed = min(max(self.given, sent), now)

    def on_data(self, now, sent):
        self.on_answered(now, sent)
        self._data = min(self._data, now)

    def add_to(self, progress):
        """Adds push, wait and pull; nothing if no gradient was computed."""
        if self.computed == math.inf:
            return

        def mark(at, before):
            return before if at == math.inf else max(at, before)

        pushed = self._pushed if self._pushed != math.inf else min(self.given, self.whole)
        pushed = mark(pushed, self.computed)
        data = mark(self._data, pushed)
        progress.push_seconds += pushed - self.computed
        progress.wait_seconds += data - pushed
        progress.pull_seconds += mark(self.whole, data) - data
