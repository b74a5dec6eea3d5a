"""The start method of our processes: `exec` of a fresh interpreter with inherited descriptors and one boot record.

The stock `spawn` pickles, puts the parent's sys.path and main module into the child and adds a resource tracker. Here a child
shares nothing but the descriptors it is given, so a user's script needs no `__main__` guard. The object is an ordinary
multiprocessing process: sentinel, join, terminate, exitcode; what still runs when the program ends is terminated.
"""

import asyncio
import multiprocessing.util  # noqa: F401 - first: its hook for the program's end then runs after that of whoever owns an engine
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import IO, Any

import msgspec

from ..ipc.segment import STANDARD_ERROR, create_segment
from .body import LINE_LIMIT
from .boot import Boot, encode_boot

TAIL_LINES = 20  # kept of what it prints last


class _Popen:
    """What multiprocessing expects of a start method. Its sentinel is a pidfd: readable as soon as the process has ended."""

    method = "exec"

    def __init__(self, process: "ActorProcess") -> None:
        self._child = subprocess.Popen(
            process.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=process.descriptors,
            process_group=0,  # a terminal's Ctrl-C goes to the supervisor, which stops the engine in order
        )
        self.pid = self._child.pid
        try:
            self.sentinel = os.pidfd_open(self.pid)
        except OSError:
            self._child.kill()
            self._child.wait()
            raise
        assert self._child.stdout is not None
        self.output = self._child.stdout

    @property
    def returncode(self) -> int | None:
        return self._child.returncode

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        return self._child.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        try:
            return self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def terminate(self) -> None:
        self._child.kill()  # it ignores SIGTERM

    def kill(self) -> None:
        self._child.kill()

    def close(self) -> None:
        os.close(self.sentinel)  # the output is closed by whoever reads it, at its end


class ActorProcess(BaseProcess):
    """One process of the engine; see Body. It prints to our standard error; its last lines are kept for a post-mortem."""

    _popen: Any  # what `start` got from the start method

    def __init__(self, boot: Boot, descriptors: Sequence[int]) -> None:
        super().__init__(name=boot.actor, daemon=True)
        self._boot = boot
        self.descriptors = list(descriptors)
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._boot_fd = -1

    def command(self) -> list[str]:
        """The command line. `-P` keeps the working directory off the child's sys.path."""
        kind = f"ringpost.actors.{self._boot.kind}"
        return [sys.executable, "-P", "-m", kind, "--actor", self._boot.actor, "--boot", str(self._boot_fd)]

    @staticmethod
    def _Popen(process: "ActorProcess") -> _Popen:
        started = _Popen(process)
        try:
            process.forward(started.output)
        except BaseException:
            started.kill()
            started.wait()
            started.close()
            raise
        return started

    @property
    def ending(self) -> str:
        """See Body."""
        code = self.exitcode
        return f"killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"

    def start(self) -> None:
        """Start the process."""
        own: list[int] = []  # descriptors that only the child keeps
        try:
            if self._boot.kind == "worker" and os.isatty(STANDARD_ERROR):
                own.append(os.dup(STANDARD_ERROR))
                self._boot = msgspec.structs.replace(self._boot, terminal=own[0])
            record = encode_boot(self._boot)
            self._boot_fd = create_segment(f"boot:{self.name}", len(record))
            own.append(self._boot_fd)
            os.pwrite(self._boot_fd, record, 0)
            self.descriptors += own
            super().start()
        finally:
            for fd in own:
                os.close(fd)

    def forward(self, output: IO[bytes]) -> None:
        """Copy the child's output until its end. In a thread, so that a blocked event loop never blocks a child that logs."""
        self._forwarder = threading.Thread(target=self._forward, args=(output,), name=f"output of {self.name}", daemon=True)
        self._forwarder.start()

    def _forward(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                text = line.decode(errors="replace")
                self.tail.append(text.rstrip("\n")[:LINE_LIMIT])
                with suppress(Exception):  # whatever became of standard error, the child must not block on a full pipe
                    sys.stderr.write(text)
                    sys.stderr.flush()

    def reap(self, timeout: float | None) -> bool:
        """Wait for the process to end; True when it has and everything it printed has been kept."""
        self.join(timeout)
        if self.exitcode is None:
            return False
        self._forwarder.join(timeout=1)
        return True

    async def wait(self) -> None:
        """See Body. Blocks: what was killed ends at once."""
        self.reap(timeout=None)

    def watch(self, on_end: Callable[[], None]) -> None:
        """See Body."""
        asyncio.get_running_loop().add_reader(self.sentinel, on_end)

    def unwatch(self) -> None:
        """See Body."""
        asyncio.get_running_loop().remove_reader(self.sentinel)
