"""Engines found through /proc: who holds which segment, and what is left out of it."""

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from ringpost.actors.engine_finder import FoundEngine, Segment, find_engines, open_segment, usage_of
from ringpost.ipc.segment import create_segment

Hold = Callable[[Sequence[int]], "subprocess.Popen[bytes]"]


@pytest.fixture
def hold(no_leaks: None) -> Iterator[Hold]:
    """Starts a process that does nothing but hold descriptors, until its standard input ends."""
    with ExitStack() as processes:

        def start(fds: Sequence[int]) -> "subprocess.Popen[bytes]":
            process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=fds)
            return processes.enter_context(process)

        yield start


@pytest.fixture
def segments(no_leaks: None) -> Iterator[list[int]]:
    """Descriptors of three segments, of which two have the same name."""
    fds = [create_segment(name, 4096) for name in ("plans[0]", "plans[0]", "requests[0,0].urgent")]
    yield fds
    for fd in fds:
        os.close(fd)


def engine_of(pid: int) -> FoundEngine | None:
    found = [engine for engine in find_engines() if pid in engine.pids]
    assert len(found) <= 1
    return found[0] if found else None


def end(process: "subprocess.Popen[bytes]") -> None:
    process.communicate()


def test_processes_that_share_segments_are_one_engine(hold: Hold, segments: list[int]) -> None:
    first, second = hold(segments[:2]), hold(segments[2:])
    engine = engine_of(first.pid)
    assert engine is not None
    assert engine.pids == {os.getpid(), first.pid, second.pid}  # this process holds all of them
    assert [segment.name for segment in engine.segments] == ["plans[0]", "plans[0]", "requests[0,0].urgent"]
    assert len({segment.identity for segment in engine.segments}) == 3
    assert set(engine.segments[0].paths) == {os.getpid(), first.pid}
    end(first)
    assert engine_of(first.pid) is None
    assert engine_of(second.pid) == engine_of(os.getpid())


def test_processes_that_share_nothing_are_several(hold: Hold) -> None:
    processes = []
    for _ in range(2):
        fd = create_segment("plans[0]", 4096)
        processes.append(hold([fd]))
        os.close(fd)
    for process in processes:
        engine = engine_of(process.pid)
        assert engine is not None
        assert engine.pids == {process.pid}


def test_three_in_a_chain_are_one(hold: Hold) -> None:
    """Whichever of the segments is found first."""
    fds = [create_segment(f"results[0,{number}]", 4096) for number in range(3)]
    chain = [hold(fds[:1]), hold(fds[2:]), hold(fds[:2]), hold(fds[1:])]
    for fd in fds:
        os.close(fd)
    engine = engine_of(chain[0].pid)
    assert engine is not None
    assert engine.pids == {process.pid for process in chain}


def test_who_only_looks_does_not_belong_to_it(hold: Hold, segments: list[int]) -> None:
    readable = [os.open(f"/proc/self/fd/{fd}", os.O_RDONLY) for fd in segments]
    onlooker = hold(readable)
    for fd in readable:
        os.close(fd)
    assert engine_of(onlooker.pid) is None
    assert engine_of(os.getpid()) is not None


def test_memory_of_others_is_left_alone(no_leaks: None) -> None:
    fds = [os.memfd_create(name) for name in ("plans[0]", "ringpost", "ringpost:", "ringpost:\x1b[2J", "other:plans[0]")]
    assert engine_of(os.getpid()) is None
    for fd in fds:
        os.close(fd)


def found(pid: int) -> list[Segment]:
    engine = engine_of(pid)
    assert engine is not None
    return engine.segments


def test_a_segment_opens_for_reading_through_whoever_still_holds_it(hold: Hold) -> None:
    fd = create_segment("plans[0]", 4096)
    first, second = hold([fd]), hold([fd])
    os.pwrite(fd, b"hello", 0)
    os.close(fd)
    (segment,) = found(first.pid)
    end(first)
    opened = open_segment(segment)
    assert os.pread(opened, 5, 0) == b"hello"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(opened, b"x", 0)
    os.close(opened)
    end(second)
    with pytest.raises(FileNotFoundError, match=r"segment plans\[0\]"):
        open_segment(segment)


def test_a_descriptor_that_has_become_another_is_not_taken_for_it(no_leaks: None) -> None:
    fd, other = create_segment("plans[0]", 4096), create_segment("plans[0]", 4096)
    segment = next(segment for segment in found(os.getpid()) if segment.paths[os.getpid()].endswith(f"/{fd}"))
    os.dup2(other, fd)
    with pytest.raises(FileNotFoundError):
        open_segment(segment)
    os.close(fd)
    os.close(other)


@pytest.mark.parametrize(("size", "flags"), [(4096, 0), (4096, os.MFD_ALLOW_SEALING), (0, os.MFD_ALLOW_SEALING)])
def test_memory_that_could_shrink_is_not_opened(no_leaks: None, size: int, flags: int) -> None:
    """To read behind the end of a file kills the process that does."""
    fd = os.memfd_create("ringpost:plans[0]", flags)
    os.truncate(fd, size)
    (segment,) = found(os.getpid())
    with pytest.raises(FileNotFoundError):
        open_segment(segment)
    os.close(fd)


def test_what_a_process_has_used(hold: Hold) -> None:
    usage = usage_of(os.getpid())
    assert usage is not None
    assert usage.cpu_seconds > 0
    assert usage.rss_bytes > 1 << 20
    process = hold([])
    assert usage_of(process.pid) is not None
    end(process)
    assert usage_of(process.pid) is None
