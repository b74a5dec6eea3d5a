"""Running engines as /proc shows them: which processes hold which of our memory segments, and what they use.

Nothing here disturbs a process that is looked at. Processes end and descriptors close meanwhile; what has gone is left out.
"""

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from ..ipc.segment import LABEL

Identity = tuple[int, int]  # device and inode; two segments may have the same name

_LINK = re.compile(rf"/memfd:{LABEL}([\w.:,\[\]]+) \(deleted\)")
_SMALLEST = 256  # bytes; a board is never smaller
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_UTIME, _STIME, _RSS = 11, 12, 21  # fields of /proc/PID/stat, counted from the one after the command


class Segment(msgspec.Struct, frozen=True):
    """A segment, and by pid a path under which each process that holds it can be asked for it."""

    name: str
    identity: Identity
    paths: dict[int, str]


class FoundEngine(msgspec.Struct, frozen=True):
    """Processes that are joined by segments."""

    pids: frozenset[int]
    segments: list[Segment]


class Usage(msgspec.Struct, frozen=True):
    """What a process has used."""

    cpu_seconds: float  # user and system, of all its threads
    rss_bytes: int  # resident, shared pages included


def find_engines() -> list[FoundEngine]:
    """Every engine whose processes this user may look at, by its lowest pid."""
    paths: dict[tuple[str, Identity], dict[int, str]] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        for name, identity, path in _held_by(pid):
            paths.setdefault((name, identity), {}).setdefault(pid, path)
    segments = [Segment(name, identity, holders) for (name, identity), holders in paths.items()]
    groups: list[frozenset[int]] = []
    for segment in segments:
        joined = frozenset(segment.paths).union(*(group for group in groups if not group.isdisjoint(segment.paths)))
        groups = [*(group for group in groups if group.isdisjoint(joined)), joined]
    return [
        FoundEngine(group, [segment for segment in segments if not group.isdisjoint(segment.paths)])
        for group in sorted(groups, key=min)
    ]


def _held_by(pid: int) -> Iterator[tuple[str, Identity, str]]:
    """Name, identity and path of each segment that a process holds. One that holds it for reading only looks, as we do."""
    folder = f"/proc/{pid}/fd"
    numbers: list[str] = []
    with suppress(OSError):  # it has ended, or is somebody else's
        numbers = os.listdir(folder)
    for number in numbers:
        path = f"{folder}/{number}"
        with suppress(OSError):
            link = _LINK.fullmatch(os.readlink(path))
            if link and os.lstat(path).st_mode & stat.S_IWUSR:
                yield link[1], _identity(os.stat(path)), path


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def open_segment(segment: Segment) -> int:
    """A descriptor for reading only, through any process that still holds the segment.

    Raises FileNotFoundError when none does, and when the memory could shrink under a mapping: then it is not ours.
    """
    for path in segment.paths.values():
        with suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            if _is_sealed(fd, segment.identity):
                return fd
            os.close(fd)
    raise FileNotFoundError(f"segment {segment.name}: nobody holds it any more")


def _is_sealed(fd: int, identity: Identity) -> bool:
    """Whether it is the segment that was found, and keeps its size."""
    status = os.fstat(fd)
    if _identity(status) != identity or status.st_size < _SMALLEST:
        return False
    return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)


def usage_of(pid: int) -> Usage | None:
    """What a process has used so far; None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return Usage((int(fields[_UTIME]) + int(fields[_STIME])) / _TICKS, int(fields[_RSS]) * _PAGE)
    except (OSError, IndexError):
        return None
