"""PhaseClock: where the time of a loop goes, phase by phase."""

from time import perf_counter


class PhaseClock:
    """Seconds spent in each phase since the clock was made. A mark costs a fraction of a microsecond.

    They are the caller's seconds: what a device still computes when a phase ends counts where the caller waits for it.
    """

    def __init__(self, *phases: str) -> None:
        """These are all phases there are, in the order in which they are shown."""
        self.seconds = dict.fromkeys(phases, 0.0)
        self._last = perf_counter()

    def mark(self, phase: str) -> None:
        """A phase ends: all time since the mark before belongs to it."""
        now = perf_counter()
        self.seconds[phase] += now - self._last
        self._last = now

    def skip(self) -> None:
        """The time since the mark before belongs to no phase."""
        self._last = perf_counter()
