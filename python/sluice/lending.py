"""Memory that is lent out, and comes back with the last reference to it."""

import numpy as np


class _Lent(np.ndarray):

    _on_return = None  # of what numpy makes of one, there is nothing to give back

    def __del__(self):
        if self._on_return is not None:
            self._on_return()


def lend(memory, on_return):
    """A memoryview of `memory`, a flat array of bytes.

    on_return() is called when nothing refers to it any more, nor to what was made of it (slices,
    arrays over it); by any thread.
    """
    lent = memory.view(_Lent)
    lent._on_return = on_return
    return memoryview(lent)


class Pool:
    """Arrays that are used again and again: fresh memory of the system's costs as much as filling
    it twice."""

    _MOST = 2  # of one kind that are kept while nobody uses them

    def __init__(self):
        self._free = {}  # (elements, dtype) -> [flat array of bytes]

    def take(self, count, dtype):
        """A flat array of undefined content, which is in use as long as something refers to it."""
        if count == 0:
            return np.empty(0, dtype=dtype)
        free = self._free.setdefault((count, dtype), [])
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(count * dtype.itemsize, dtype=np.uint8)

        def give_back():
            if len(free) < self._MOST:
                free.append(memory)

        return np.frombuffer(lend(memory, give_back), dtype=dtype)
