"""Memory that is copied into, and lent out until its last reference ends."""

import numpy as np

# Larger copies release the interpreter's lock.
_LARGE_BYTES = 1 << 16


class Bytes:
    """A flat array of bytes into which pieces are copied."""

    def __init__(self, array):
        """`array`: contiguous, of any type."""
        self._array = array.view(np.uint8)
        self._view = self._array.data

    def copy(self, at, piece):
        """Copies a bytes-like piece, which must fit. Other threads run while a large one is
        copied."""
        size = len(piece)
        if size < _LARGE_BYTES:
            self._view[at:at + size] = piece  # the fastest way
        else:
            self._array[at:at + size] = np.frombuffer(piece, dtype=np.uint8)


class _Lent(np.ndarray):

    _on_return = None  # views that numpy derives return nothing

    def __del__(self):
        if self._on_return is not None:
            self._on_return()


def lend(memory, on_return):
    """Returns a memoryview of `memory`, a flat array of bytes.

    on_return() is called when no reference to it or to its derivatives (slices, arrays over it) is
    left; on any thread.
    """
    lent = memory.view(_Lent)
    lent._on_return = on_return
    return memoryview(lent)


class Pool:
    """Arrays that are reused: fresh memory from the system costs as much as filling it twice."""

    _MOST = 2  # unused arrays of one kind that are kept

    def __init__(self):
        self._free = {}  # (elements, dtype) -> [flat array of bytes]

    def take(self, count, dtype):
        """A flat array of undefined content. It is in use as long as a reference to it exists."""
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
