"""Where the time of a start goes: phases of a process, one after the other."""

import os
import time
from pathlib import Path

READY = "ready"  # all of it, from the start of the engine
EXEC = "exec"  # until its first line that is ours, imports before that included


class StartPhases:
    """A clock that is read at the end of each phase.

    Attributes:
        seconds: by phase, in their order.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def end(self, phase: str) -> None:
        """A phase is over, and the next one begins."""
        now = time.monotonic()
        self.seconds[phase], self._last = now - self._last, now


def process_age() -> float:
    """Seconds since this process was started, to a hundredth or so, as the kernel counts."""
    began = int(Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[19])
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK"))
