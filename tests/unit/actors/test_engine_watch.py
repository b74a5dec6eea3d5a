"""What is seen of actors that do not answer: their boards and their mailboxes, here without the processes."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from msgspec.structs import replace

from ringpost.actors.boot import Boot
from ringpost.actors.config import engine_config
from ringpost.actors.hang import cadence_of
from ringpost.actors.logs import logger
from ringpost.actors.status import StatusBlock
from ringpost.actors.topology import Topology
from ringpost.actors.watch import CoreTotals, EngineWatch
from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.board import BoardWriter
from ringpost.ipc.lanes import LaneReceiver, LaneSender
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.control import Stop, ToActor
from ringpost.ipc.messages.load import LoadStats
from ringpost.ipc.messages.plans import InitCache, PlanMessage
from ringpost.ipc.messages.status import ActorStatus, State

LIMIT = 8.0
LOOKS = 7  # so many in a row find whoever is stuck at the first of them


class Engine:
    """The boards and mailboxes of an engine, all in the hands of the test."""

    def __init__(self, opened: ExitStack) -> None:
        topology = Topology(engine_config())
        opened.callback(topology.close)
        self.core, self.worker = topology.boots()
        self.core_status, self.worker_status = (self._status(boot, opened) for boot in topology.boots())
        assert self.core.plans is not None
        self.plans: Sender[PlanMessage] = attach_sender(self.core.plans.duplicate(), PlanMessage)
        self.taken: Receiver[PlanMessage] = attach_receiver(self.core.plans.duplicate(), PlanMessage)
        self.orders: LaneSender[ToActor] = LaneSender(self.core.to_actor.duplicate(), ToActor)
        self.obeyed: LaneReceiver[ToActor] = LaneReceiver(self.core.to_actor.duplicate(), ToActor)
        for end in (self.plans, self.taken, self.orders, self.obeyed):
            opened.callback(end.close)
        self.watch = opened.enter_context(EngineWatch(topology.boots(), LIMIT))
        self.now = 0.0

    def _status(self, boot: Boot, opened: ExitStack) -> StatusBlock:
        writer = BoardWriter(boot.status, ActorStatus)
        opened.callback(writer.close)
        return StatusBlock(writer.post, actor=boot.actor, kind=boot.kind, supervisor=boot.supervisor, epoch=boot.epoch)

    def serve(self) -> None:
        for status in (self.core_status, self.worker_status):
            status.state("ready")

    def look(self, times: int = 1) -> str | None:
        """What is known after so many looks, a cadence apart."""
        for _ in range(times):
            self.now += cadence_of(LIMIT)
            self.watch.look(self.now)
        return self.watch.hung


@pytest.fixture
def engine(no_leaks: None) -> Iterator[Engine]:
    with ExitStack() as opened:
        yield Engine(opened)


def named(status: StatusBlock) -> str:
    return f"{status.now.actor} (pid {status.now.pid})"


def test_who_idles_does_not_hang(engine: Engine) -> None:
    engine.serve()
    assert engine.look(3 * LOOKS) is None


def test_a_message_in_hand(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *values: said.append(text % values))
    engine.serve()
    engine.worker_status.taking("StepPlan 17")
    assert engine.look(LOOKS - 1) is None
    assert engine.look() == f"{named(engine.worker_status)}: holds StepPlan 17 for 12 s"
    assert engine.look() == f"{named(engine.worker_status)}: holds StepPlan 17 for 14 s"
    engine.worker_status.done()
    assert engine.look() is None
    assert engine.look(LOOKS) is None
    assert said == [
        f"no progress: {named(engine.worker_status)}: holds StepPlan 17 for 12 s",
        f"no longer seen to hang: {named(engine.worker_status)}: holds StepPlan 17 for 14 s",
    ]


def test_one_message_after_another_is_progress(engine: Engine) -> None:
    engine.serve()
    for step in range(2 * LOOKS):
        engine.worker_status.taking(f"StepPlan {step}")
        assert engine.look(LOOKS - 2) is None
        engine.worker_status.done()


def test_the_same_message_again_is_another(engine: Engine) -> None:
    engine.serve()
    for _ in range(3):
        engine.worker_status.taking("DescribeWorker")
        assert engine.look(LOOKS - 2) is None


def test_a_message_that_nobody_takes(engine: Engine) -> None:
    """However many more are sent."""
    engine.serve()
    for _ in range(LOOKS):
        engine.plans.send_nowait(InitCache(1))
        hung = engine.look()
    assert hung == f"{named(engine.worker_status)}: has taken nothing from plans[0] for 12 s"
    assert isinstance(engine.taken.receive_nowait(), InitCache)
    assert engine.look() is None
    assert engine.look(LOOKS - 2) is None
    assert engine.look() is not None


def test_urgent_ones_too_and_all_who_hang_are_named(engine: Engine) -> None:
    engine.serve()
    assert engine.orders.send_urgent(Stop())
    engine.worker_status.taking("StepPlan 3")
    assert engine.look(LOOKS) == (
        f"{named(engine.core_status)}: has taken nothing from to[core0].urgent for 12 s; "
        f"{named(engine.worker_status)}: holds StepPlan 3 for 12 s"
    )
    assert isinstance(engine.obeyed.receive_nowait(), Stop)
    assert engine.look() == f"{named(engine.worker_status)}: holds StepPlan 3 for 14 s"


@pytest.mark.parametrize("state", ["starting", "stopping", "failed"])
def test_who_does_not_serve_is_not_looked_at(engine: Engine, state: State) -> None:
    engine.worker_status.taking("InitCache")
    engine.plans.send_nowait(InitCache(1))
    if state != "starting":
        engine.worker_status.state(state)
    assert engine.look(2 * LOOKS) is None


def test_who_drains_is_looked_at(engine: Engine) -> None:
    engine.serve()
    engine.core_status.state("draining")
    engine.core_status.taking("StepResult 3")
    assert engine.look(LOOKS) is not None


def test_the_load_of_the_core(engine: Engine) -> None:
    assert engine.watch.load() is None
    engine.worker_status.done(load=LoadStats(9, 9, 9, 9, 9))
    engine.core_status.done(load=LoadStats(0, 1, 2, 3, 4))
    engine.core_status.taking("StepResult 3")
    assert engine.watch.load() == LoadStats(0, 1, 2, 3, 4)


def test_who_asks_whom(engine: Engine) -> None:
    assert engine.watch.asks_of("core0") == ""
    engine.core_status.asking("worker0.0")
    assert [engine.watch.asks_of(name) for name in ("core0", "worker0.0", "nobody")] == ["worker0.0", "", ""]


@pytest.mark.asyncio
async def test_it_looks_by_itself(engine: Engine) -> None:
    engine.serve()
    engine.worker_status.taking("StepPlan 3")

    async def until(hung: bool, seen: EngineWatch) -> None:
        while (seen.hung is not None) is not hung:
            await asyncio.sleep(0)

    with EngineWatch([engine.core, engine.worker], 0.2) as seen:
        async with asyncio.TaskGroup() as tasks:
            running: asyncio.Task[Any] = tasks.create_task(seen.run())
            await until(True, seen)
            assert seen.hung is not None
            assert seen.hung.startswith(f"{named(engine.worker_status)}: holds StepPlan 3 for ")
            engine.worker_status.done()
            await until(False, seen)
            running.cancel()


def test_counts_go_on_where_the_core_before_ended() -> None:
    totals = CoreTotals()
    seen = [
        totals.load(epoch, LoadStats(0, running, 0, 3, 4, *counts))
        for epoch, running, counts in (
            (1, 9, (1, 100, 40)),
            (1, 8, (2, 200, 90)),
            (2, 0, (0, 0, 0)),
            (2, 1, (3, 50, 10)),
            (2, 1, (3, 50, 10)),
            (4, 0, (5, 999, 999)),  # one that nobody saw came between
        )
    ]
    assert [(load.preemptions, load.prefix_queries, load.prefix_hits) for load in seen] == [
        *((1, 100, 40), (2, 200, 90), (2, 200, 90), (5, 250, 100), (5, 250, 100), (10, 1249, 1099)),
    ]
    assert [(load.running, load.used_blocks) for load in seen] == [(9, 3), (8, 3), (0, 3), (1, 3), (1, 3), (0, 3)]


def test_the_counts_of_an_engine_are_those_of_all_its_cores(engine: Engine) -> None:
    engine.serve()
    engine.core_status.done(1, LoadStats(0, 1, 0, 1, 9, 2, 30, 10))
    assert engine.watch.load() == LoadStats(0, 1, 0, 1, 9, 2, 30, 10)
    engine.core_status.now = replace(engine.core_status.now, epoch=2)
    engine.core_status.done(1, LoadStats(0, 0, 0, 0, 9, 1, 5, 5))
    assert engine.watch.load() == LoadStats(0, 0, 0, 0, 9, 3, 35, 15)


def test_what_a_dead_actor_has_left_on_its_board_says_nothing(engine: Engine) -> None:
    engine.serve()
    engine.worker_status.taking("StepPlan 17")
    assert engine.look(LOOKS)
    engine.watch.replaced(["worker0.0"])
    assert engine.watch.hung is None
    assert engine.look(3 * LOOKS) is None
    engine.worker_status._set(replace(engine.worker_status.now, epoch=2))  # its successor has posted, and hangs too
    assert engine.look(LOOKS)
