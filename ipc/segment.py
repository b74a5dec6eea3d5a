"""Memory that processes share without a name: sealed memfd segments."""

import fcntl
import mmap
import os

STANDARD_ERROR = 2
LABEL = "ringpost:"  # what /proc shows of a segment


def create_segment(name: str, size: int) -> int:
    """Make a segment of `size` zero bytes that nobody can resize any more; returns its descriptor, closed on exec."""
    fd = above_standard(os.memfd_create(LABEL + name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


def above_standard(fd: int) -> int:
    """The same file under a descriptor that no child takes for its standard input, output or error; closed on exec."""
    if fd > STANDARD_ERROR:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, STANDARD_ERROR + 1)
    finally:
        os.close(fd)


def map_segment(fd: int, *, writable: bool = True) -> mmap.mmap:
    """Map a whole segment, for reading and writing or for reading only. The mapping outlives the descriptor."""
    return mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
