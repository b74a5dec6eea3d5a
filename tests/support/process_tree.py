"""The processes of an engine, seen from outside."""

import os
import select
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from programs import LIMIT


def child_pids(pid: int) -> list[int]:
    """The children that a process has now, in the order of their start."""
    children: list[int] = []
    with suppress(OSError):  # it has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError):  # a thread that has just ended
                children += map(int, (task / "children").read_text().split())
    return sorted(children)


def actor_pids(pid: int) -> dict[str, int]:
    """The actors that a process has started and that still run, by name, in the order of their start."""
    found = {}
    for child in child_pids(pid):
        words = command_line(child)
        if "--actor" in words:
            found[words[words.index("--actor") + 1]] = child
    return found


def command_line(pid: int) -> list[str]:
    """The words of a process's command; none when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


@contextmanager
def all_end(pids: Sequence[int]) -> Iterator[None]:
    """The processes, which live when the block begins, have ended soon after it."""
    with ExitStack() as handles:
        watched = {}
        for pid in pids:
            watched[pid] = os.pidfd_open(pid)
            handles.callback(os.close, watched[pid])
        yield
        for pid, handle in watched.items():
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            assert poll.poll(LIMIT * 1000), f"process {pid} still runs"
