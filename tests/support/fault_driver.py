"""FaultDriver: strikes the processes of a running engine from outside, as the test receives tokens; and streams that let it."""

import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from signal import SIGKILL, Signals
from types import TracebackType
from typing import Self

from msgspec.structs import replace
from process_tree import command_line

from ringpost import AsyncLLM, RequestOutputKind, SamplingParams
from ringpost.ipc.board import BoardReader
from ringpost.ipc.messages.status import ActorStatus

CORE, WORKER = "core0", "worker0.0"
BOTH = (CORE, WORKER)


@dataclass(eq=False)
class Stream:
    """What one request got."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    reason: str | None = None
    stop_reason: int | str | None = None
    cached: int = 0
    arrival: float = 0.0
    first: float = 0.0
    times: list[float] = field(default_factory=list)  # when each output came, in CLOCK_MONOTONIC

    def pause_at(self, moment: float) -> float:
        """Seconds between the two outputs around a moment; 0 if there are not two."""
        return next((after - before for before, after in pairwise(self.times) if before <= moment < after), 0.0)


@dataclass(frozen=True)
class Blow:
    """A signal to some actors at once, when so many tokens have come since the victims of the blow before work again."""

    after: int
    victims: Sequence[str]
    how: Signals = SIGKILL


@dataclass(frozen=True)
class Struck:
    """What a victim got, when, in CLOCK_MONOTONIC, and how many requests were unfinished then."""

    time: float
    actor: str
    pid: int
    what: str
    unfinished: int
    blow: int  # number of the blow, from 0


def random_blows(seed: int, count: int, furthest: int = 20) -> list[Blow]:
    """Kills of worker, core or both, each at most `furthest` tokens after the one before."""
    chooser = random.Random(seed)
    return [Blow(chooser.randint(2, furthest), chooser.choice([(CORE,), (WORKER,), BOTH])) for _ in range(count)]


class FaultDriver:
    """`with FaultDriver(engine, blows) as driver`; whoever reads a stream of its names it with every token.

    With `patient`, no blow falls before each stream has got a token since the blow before: then none can be suspected of the
    deaths.

    Attributes:
        log: what has been struck so far.
        left: the blows still to come.
    """

    def __init__(
        self,
        engine: AsyncLLM,
        blows: Sequence[Blow],
        *,
        patient: bool = True,
        on_blow: Callable[[int], object] = lambda _: None,
    ) -> None:
        """`on_blow` learns the number of each blow when it has just fallen."""
        self.log: list[Struck] = []
        self.left = list(blows)
        self._engine = engine
        self._patient = patient
        self._on_blow = on_blow
        self._fallen = 0  # blows
        self._count = 0
        self._behind: set[Stream] = set()  # have got no token since the last blow
        self._live: set[Stream] = set()
        self._down: dict[str, int] = {}  # victims and their pids, until they work again
        assert engine._supervisor is not None
        with ExitStack() as opened:
            boots = engine._supervisor.topology.boots()
            self._boards = {boot.actor: BoardReader(boot.status, ActorStatus) for boot in boots}
            for board in self._boards.values():
                opened.callback(board.close)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._opened.close()

    def began(self, stream: Stream) -> None:
        """A request is sent."""
        self._live.add(stream)
        self._behind.add(stream)

    def ended(self, stream: Stream) -> None:
        """It has ended."""
        self._live.discard(stream)
        self._behind.discard(stream)

    def received(self, stream: Stream, tokens: int) -> None:
        """So many tokens of it have come."""
        self._down = {actor: pid for actor, pid in self._down.items() if not self._works_again(actor, pid)}
        if not self.left or self._down:
            return
        self._behind.discard(stream)
        self._count += tokens
        if self._count >= self.left[0].after and not (self._patient and self._behind):
            self._count = 0
            self._behind |= self._live
            self.strike(self.left.pop(0))

    def strike(self, blow: Blow) -> None:
        """Strike now."""
        pids = self.pids()
        for actor in blow.victims:
            pid = pids[actor]
            assert actor in command_line(pid)
            os.kill(pid, blow.how)
            self._down[actor] = pid
            self.log.append(
                Struck(time.monotonic(), actor, pid, blow.how.name, self._engine.num_unfinished_requests, self._fallen)
            )
        self._on_blow(self._fallen)
        self._fallen += 1

    def pids(self) -> dict[str, int]:
        """The processes by actor."""
        return {process.actor: process.pid for process in self._engine.process_table()}

    def _works_again(self, actor: str, pid: int) -> bool:
        """Whether a victim has a successor that has finished a step."""
        status = self._boards[actor].read()
        return status is not None and status.pid != pid and status.state == "ready" and status.steps > 0


async def follow(engine: AsyncLLM, prompt: Sequence[int], params: SamplingParams, driver: FaultDriver | None = None) -> Stream:
    """Read a request to its end by deltas, none of which may be lost or come twice; what it says of itself has to hold."""
    stream = Stream()
    params = replace(params, output_kind=RequestOutputKind.DELTA)
    if driver is not None:
        driver.began(stream)
    async for output in engine.generate(list(prompt), params):
        stream.times.append(time.monotonic())
        (completion,), metrics = output.outputs, output.metrics
        stream.tokens += completion.token_ids
        stream.text += completion.text
        assert metrics.num_generation_tokens == len(stream.tokens)
        assert stream.arrival in (0.0, metrics.arrival_time)
        assert stream.first in (0.0, metrics.first_token_time)
        assert stream.cached <= output.num_cached_tokens <= len(prompt)
        stream.arrival, stream.first, stream.cached = metrics.arrival_time, metrics.first_token_time, output.num_cached_tokens
        stream.reason, stream.stop_reason = completion.finish_reason, completion.stop_reason
        if driver is not None:
            driver.received(stream, len(completion.token_ids))
    if driver is not None:
        driver.ended(stream)
    return stream
