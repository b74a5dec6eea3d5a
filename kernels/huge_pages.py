"""Memory in huge pages, for what a step reads all of: with small ones, finding a page costs as much as reading it."""

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 64
_CHUNK = 32 << 20


def huge_zeros(nbytes: int) -> npt.NDArray[np.uint8]:
    """Zeros that take memory when they are first touched, in huge pages where the kernel has them."""
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)[:nbytes]


class Arena:
    """Places arrays side by side, so that small ones share huge pages. The memory of one lives as long as its neighbours'."""

    def __init__(self) -> None:
        self._free = huge_zeros(0)

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """An array of zeros that begins at a multiple of 64 bytes."""
        size = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if size > len(self._free):
            if size > _CHUNK // 4:
                return huge_zeros(nbytes)
            self._free = huge_zeros(_CHUNK)
        taken, self._free = self._free[:nbytes], self._free[size:]
        return taken
