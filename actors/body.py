"""Body: what an actor of the engine runs in, as its supervisor handles it: a process, or a task of this one."""

from collections.abc import Callable, Sequence
from typing import Protocol

LINE_LIMIT = 2000  # characters of a printed line that are kept


class Body(Protocol):
    """Started once. ActorProcess is one, ActorTask the other."""

    @property
    def pid(self) -> int | None:
        """Of the process that it runs in; None before `start`."""

    @property
    def exitcode(self) -> int | None:
        """None while it runs, 0 when it ended in good order."""

    @property
    def ending(self) -> str:
        """In words, how it ended, when it said nothing itself."""

    @property
    def tail(self) -> Sequence[str]:
        """The last lines it printed."""

    def start(self) -> None:
        """Begin. Raises OSError when the system refuses."""

    def kill(self) -> None:
        """End it without asking."""

    def reap(self, timeout: float | None) -> bool:
        """Whether it has ended, after at most so many seconds; then everything it said has been kept."""

    async def wait(self) -> None:
        """Wait until it has ended, after `kill`; then as `reap`."""

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call this from the running loop when it has ended, until `unwatch`."""

    def unwatch(self) -> None:
        """Stop calling."""

    def close(self) -> None:
        """Release what is held of it. It must have ended."""
