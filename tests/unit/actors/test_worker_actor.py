"""The worker actor over a runner that computes nothing: epochs, and what it passes over between them."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from mailboxes import lane_ends, make_lanes, make_ring, receive_all

from ringpost.actors.status import StatusBlock
from ringpost.actors.worker.actor import Worker
from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.messages.control import Reattach, ToActor
from ringpost.ipc.messages.descriptions import WorkerDescription
from ringpost.ipc.messages.plans import DescribeWorker, InitCache, PlanMessage, Reset, StepPlan, StopWorker
from ringpost.ipc.messages.results import CallResult, ResultMessage, StepResult, WorkerReady
from ringpost.ipc.messages.status import ActorStatus

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


def step(number: int) -> StepPlan:
    return StepPlan(number, [], [], [], [], [], [])


class IdleRunner:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def max_blocks(self) -> int:
        return 9

    def init_cache(self, num_blocks: int) -> None:
        self.told.append(num_blocks)

    def reset(self) -> None:
        self.told.append("reset")

    def execute(self, plan: StepPlan) -> StepResult:
        self.told.append(f"step {plan.step}")
        return StepResult(plan.step, [])

    def describe(self) -> WorkerDescription:
        return WorkerDescription(0, 1, "none", "none", 1, 0, 0, 0, {"compute": 0.5})


class Bench:
    """A worker between the ends of its mailboxes that belong to others."""

    def __init__(self, opened: ExitStack, epoch: int = 1) -> None:
        plans, results, control = make_ring(union=PlanMessage), make_ring(union=ResultMessage), make_lanes(ToActor)
        opened.callback(control.close)
        self.orders, inbound = opened.enter_context(lane_ends(control, ToActor))
        self.plans = attach_sender(plans.duplicate(), PlanMessage)
        self.results = attach_receiver(results.duplicate(), ResultMessage)
        ends = attach_receiver(plans, PlanMessage), attach_sender(results, ResultMessage)
        for end in (self.plans, self.results, *ends):
            opened.callback(end.close)
        self.runner = IdleRunner()
        self.posted: list[ActorStatus] = []
        status = StatusBlock(self.posted.append, actor="worker0.0", kind="worker", supervisor=0, epoch=epoch)
        status.state("ready")
        self.worker = Worker(self.runner, 0, ends[0], ends[1], inbound, status, epoch)

    async def answers(self, *plans: PlanMessage) -> list[Any]:
        """What it answers to these, and then to being stopped."""
        for plan in (*plans, StopWorker()):
            self.plans.send_nowait(plan)
        await self.worker.run()
        return receive_all(self.results)


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def test_an_epoch_begins_with_its_reset(opened: ExitStack) -> None:
    bench = Bench(opened)
    answers = await bench.answers(Reset(1), InitCache(7), step(0), DescribeWorker(3))
    assert answers[:3] == [WorkerReady(0, 9, 1), CallResult(0, 0), StepResult(0, [])]
    assert answers[3].call == 3
    assert answers[3].description.phases.keys() == {"idle", "receive", "send", "compute"}
    assert bench.runner.told == ["reset", 7, "step 0"]
    assert bench.posted[-1].steps == 1


async def test_a_successor_passes_over_what_its_predecessor_was_sent(opened: ExitStack) -> None:
    bench = Bench(opened, epoch=3)
    stale = (step(5), InitCache(7), Reset(2), DescribeWorker(1), step(6))
    assert await bench.answers(*stale, Reset(3), step(7)) == [WorkerReady(0, 9, 3), StepResult(7, [])]
    assert bench.runner.told == ["reset", "step 7"]
    assert bench.posted[-1].steps == 1  # what is passed over is no work


async def test_a_core_that_was_restarted_too_begins_a_later_epoch(opened: ExitStack) -> None:
    bench = Bench(opened, epoch=3)
    assert await bench.answers(Reset(4), step(7)) == [WorkerReady(0, 9, 4), StepResult(7, [])]


async def test_after_the_cores_death_its_plans_are_passed_over(opened: ExitStack) -> None:
    """Also those that are there already: they may take long, and nobody waits for them."""
    bench = Bench(opened)
    bench.plans.send_nowait(Reset(1))
    bench.orders.ordered.send_nowait(Reattach("core0", 2))  # which is taken first
    assert await bench.answers(step(0), step(1), Reset(2), step(2)) == [WorkerReady(0, 9, 2), StepResult(2, [])]


async def test_an_old_order_changes_nothing(opened: ExitStack) -> None:
    bench = Bench(opened, epoch=2)
    bench.orders.ordered.send_nowait(Reattach("core0", 2))
    assert await bench.answers(Reset(2), step(0), Reset(1), step(1)) == [
        WorkerReady(0, 9, 2),
        StepResult(0, []),
        StepResult(1, []),
    ]
