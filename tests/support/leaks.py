"""What this process holds of the machine: descriptors, descendants, files in /dev/shm."""

import os
import select
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "RINGPOST_TEST_RUN"
PATIENCE = 10.0  # seconds that processes told to leave may take


def mark_descendants() -> None:
    """Put a mark into the environment that every process started from now on inherits."""
    os.environ[MARK] = str(os.getpid())


@dataclass(frozen=True)
class Possessions:
    """What was there at one moment."""

    descriptors: frozenset[tuple[int, str]]  # number and what it leads to
    processes: frozenset[int]
    shared_files: frozenset[str]

    @classmethod
    def now(cls) -> "Possessions":
        return cls(_descriptors(), _descendants(), _shared_files())

    def left_behind(self) -> list[str]:
        """What is there in addition once processes had time to leave, in words. The processes are then killed."""
        _wait_for_exit(_descendants() - self.processes)
        now = Possessions.now()
        left = [
            *(f"descriptor {number} ({target})" for number, target in sorted(now.descriptors - self.descriptors)),
            *(f"process {pid} ({_command(pid)})" for pid in sorted(now.processes - self.processes)),
            *(f"/dev/shm/{name}" for name in sorted(now.shared_files - self.shared_files)),
        ]
        for pid in now.processes - self.processes:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return left


def _descriptors() -> frozenset[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:  # the one that listed the folder
            continue
    return frozenset(found)


def _descendants() -> frozenset[int]:
    """Children, dead ones that nobody waited for included, and every process that carries the mark."""
    mark = f"{MARK}={os.getpid()}".encode()
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() or mark in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
        except (OSError, IndexError):  # gone, or somebody else's
            continue
    return frozenset(found)


def _shared_files() -> frozenset[str]:
    folder = Path("/dev/shm")
    mine = set()
    for path in folder.iterdir() if folder.is_dir() else ():
        try:
            if path.lstat().st_uid == os.getuid():
                mine.add(path.name)
        except FileNotFoundError:
            continue
    return frozenset(mine)


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = ""
    return words or "dead, but nobody waited for it"


def _wait_for_exit(pids: frozenset[int]) -> None:
    deadline = time.monotonic() + PATIENCE
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except OSError:  # gone meanwhile
            continue
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        finally:
            os.close(handle)
