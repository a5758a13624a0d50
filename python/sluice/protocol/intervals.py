"""Sets of integers as ascending, disjoint, half-open ranges."""


class IntervalSet:

    def __init__(self, ranges=()):
        self._ranges = []
        for begin, end in ranges:
            self.add(begin, end)

    def add(self, begin, end):
        """Adjacent and overlapping ranges are merged."""
        if begin >= end:
            return
        kept = []
        for b, e in self._ranges:
            if e < begin or b > end:
                kept.append((b, e))
            else:
                begin, end = min(begin, b), max(end, e)
        kept.append((begin, end))
        self._ranges = sorted(kept)

    def remove(self, begin, end):
        if begin >= end:
            return
        kept = []
        for b, e in self._ranges:
            if b < min(e, begin):
                kept.append((b, min(e, begin)))
            if max(b, end) < e:
                kept.append((max(b, end), e))
        self._ranges = kept

    def contains_all(self, begin, end):
        return begin >= end or any(b <= begin and end <= e for b, e in self._ranges)

    def ranges(self):
        return list(self._ranges)
