"""Where the time from a step's last gradient to the next version goes.

  last gradient --push--> everything has gone out --wait--> first data --pull--> all data

See services/worker/core/step_times.h.
"""

import math


class StepTimes:
    """Of one step, or of one asynchronous update and the pull behind it. A new one in each view."""

    def __init__(self):
        # Infinite: not yet.
        self.computed = math.inf  # the last gradient is there
        self.given = math.inf  # all was given to the streams and nothing waits for credit
        self._pushed = math.inf
        self._data = math.inf
        self.whole = math.inf

    def on_answered(self, now, sent):
        """What goes out from now on is not of this contribution. `sent`: when there was last
        nothing left to send."""
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
