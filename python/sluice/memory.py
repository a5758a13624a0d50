"""Memory: copied into, and lent out until the last reference to it ends."""

import numpy as np

# Of what is worth giving up the interpreter's lock to copy it.
_LARGE_BYTES = 1 << 16


class Bytes:
    """A flat array of bytes that pieces are copied into."""

    def __init__(self, array):
        """`array`: contiguous, of whatever type."""
        self._array = array.view(np.uint8)
        self._view = self._array.data

    def copy(self, at, piece):
        """Of a bytes-like piece, which must fit. Other threads run while large ones are copied."""
        size = len(piece)
        if size < _LARGE_BYTES:
            self._view[at:at + size] = piece  # quickest
        else:
            self._array[at:at + size] = np.frombuffer(piece, dtype=np.uint8)


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
