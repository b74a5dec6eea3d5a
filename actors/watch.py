"""EngineWatch: an engine's actors seen through their boards and mailboxes. Nobody has to answer, so it tells who is stuck."""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from ..ipc.board import BoardReader
from ..ipc.messages.load import LoadStats
from ..ipc.messages.status import ActorStatus
from ..ipc.ring import RingHandle
from ..ipc.ring_view import RingView
from .boot import Boot
from .hang import HangDetector, Observation, cadence_of
from .logs import logger


class EngineWatch:
    """`with EngineWatch(boots, limit) as watch`, and `watch.run()` as a task of whoever serves.

    Attributes:
        hung: which actors have held a message for longer than `limit` seconds, and which message; None when none has.
    """

    def __init__(self, boots: Sequence[Boot], limit: float, on_hung: Callable[[str, str], None] | None = None) -> None:
        """`on_hung` learns the name of an actor that hangs, and in what, at each look that finds it so."""
        self.hung: str | None = None
        self._on_hung = on_hung
        self._totals = CoreTotals()
        self._detector = HangDetector(limit)
        self._cadence = cadence_of(limit)
        with ExitStack() as opened:
            self._actors = [_Watched(boot, opened) for boot in boots]
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._opened.close()

    async def run(self) -> None:
        """Look at every actor, again and again, for ever."""
        while True:
            await asyncio.sleep(self._cadence)
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Look at every actor once, at `now` of CLOCK_MONOTONIC."""
        found = self._detector.look(now, filter(None, map(_Watched.observe, self._actors)))
        hung = "; ".join(f"{actor.named}: {found[actor.name]}" for actor in self._actors if actor.name in found) or None
        if hung and not self.hung:
            logger.warning("no progress: %s", hung)
        elif self.hung and not hung:
            logger.warning("no longer seen to hang: %s", self.hung)
        self.hung = hung
        if self._on_hung is not None:
            for name, what in found.items():
                self._on_hung(name, what)

    def replaced(self, actors: Collection[str]) -> None:
        """These are dead: what is on their boards says nothing any more, until their successors post."""
        for actor in self._actors:
            if actor.name in actors:
                actor.forget()
        self.hung = None  # the next look tells whether others hang too

    def load(self) -> LoadStats | None:
        """How busy the first core is, as it posted last, with the counts of CoreTotals; None when it has not yet."""
        status = next(actor.status() for actor in self._actors if actor.kind == "engine_core")
        return None if status is None or status.load is None else self._totals.load(status.epoch, status.load)

    def asks_of(self, name: str) -> str:
        """The actor whose answer this one waits for, as it posted last; empty for nobody, or when it is not known."""
        status = next((actor.status() for actor in self._actors if actor.name == name), None)
        return status.asks if status is not None else ""


class CoreTotals:
    """The counts of a core over its restarts: a successor's go on where those of its predecessor were last seen."""

    def __init__(self) -> None:
        self._epoch = 0
        self._before = self._last = (0, 0, 0)  # of all epochs before this one; of this one

    def load(self, epoch: int, load: LoadStats) -> LoadStats:
        """What the core of this epoch has posted, with the counts of those before it added."""
        if epoch != self._epoch:
            self._epoch, self._before = epoch, self._sum(self._last)
        self._last = (load.preemptions, load.prefix_queries, load.prefix_hits)
        preemptions, queries, hits = self._sum(self._last)
        return replace(load, preemptions=preemptions, prefix_queries=queries, prefix_hits=hits)

    def _sum(self, counts: tuple[int, int, int]) -> tuple[int, int, int]:
        (a, b, c), (x, y, z) = self._before, counts
        return a + x, b + y, c + z


class _Watched:
    """What there is to see of one actor."""

    def __init__(self, boot: Boot, opened: ExitStack) -> None:
        self.name = boot.actor
        self.kind = boot.kind
        self._dead_epoch = 0  # of a process that has died
        self._board = BoardReader(boot.status, ActorStatus)
        opened.callback(self._board.close)
        self._inbound: list[tuple[str, RingView, int]] = []
        for handle, slot in boot.inbound():
            if isinstance(handle, RingHandle):  # else there is no other process whose reader could be stuck
                view = RingView(handle.memory)
                opened.callback(view.close)
                self._inbound.append((handle.name, view, slot))

    def status(self) -> ActorStatus | None:
        """What it posted last."""
        return self._board.read()

    def forget(self) -> None:
        """Its process is dead."""
        status = self.status()
        self._dead_epoch = 0 if status is None else status.epoch

    @property
    def named(self) -> str:
        """Its name and the pid of its process."""
        status = self.status()
        return self.name if status is None else f"{self.name} (pid {status.pid})"

    def observe(self) -> Observation | None:
        """The actor now; None unless it serves, as its start and its end have limits of their own."""
        status = self.status()
        if status is None or status.state not in ("ready", "draining") or status.epoch == self._dead_epoch:
            return None
        taken, waiting = [], []
        for name, view, slot in self._inbound:
            reading = view.read()
            taken.append(reading.readers[slot].position)
            if reading.writer.position != taken[-1]:
                waiting.append(name)
        doing = f"holds {status.message}" if status.message else f"has taken nothing from {', '.join(waiting)}"
        return Observation(
            status.actor,
            status.epoch,
            busy=bool(status.message or waiting),
            marker=(status.steps, status.progress, status.message, status.since, *taken),
            what=doing,
        )
