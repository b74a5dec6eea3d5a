"""The core actor: requests that end well, fail or are aborted, and how the core itself ends."""

import pytest
from mailboxes import fill, parked, receive_all
from paper_core import PLANS, Core

from ringpost.actors.engine_core import output_port
from ringpost.ipc.messages.control import Drain, Stop
from ringpost.ipc.messages.load import LoadStats
from ringpost.ipc.messages.outputs import StepOutputs, UtilityReply
from ringpost.ipc.messages.requests import Abort, DescribeEngine, ResetPrefixCache
from ringpost.ipc.messages.results import RowFailure
from ringpost.sched.scheduler import Scheduler

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


async def test_a_request_is_answered_and_leaves_nothing() -> None:
    async with Core() as core:
        core.add(1, max_tokens=3)
        assert await core.answer_to(1) == ([7, 7, 7], "length")
        description = await core.describe()
        assert (description.running, description.waiting, description.free_blocks, description.num_blocks) == (0, 0, 8, 8)
        assert description.steps == 3


async def test_a_request_that_cannot_run_fails_alone() -> None:
    async with Core() as core:
        core.add(1, tokens=64)
        assert await core.answer_to(1) == ([], "RequestTooLong")
        core.add(2)
        assert await core.answer_to(2) == ([7, 7], "length")


async def test_a_request_that_fails_in_a_step_fails_alone() -> None:
    async with Core() as core:
        core.executor.next_failure = RowFailure(0, "RuntimeError", "not finite")
        core.add(1)
        assert await core.answer_to(1) == ([], "RuntimeError")
        core.add(2)
        assert await core.answer_to(2) == ([7, 7], "length")


async def test_an_aborted_request_is_forgotten_and_an_unknown_one_ignored() -> None:
    async with Core() as core:
        core.add(1, max_tokens=50)
        core.requests.send_nowait(Abort(1))
        core.requests.send_nowait(Abort(99))
        assert (await core.describe()).free_blocks == 8
        core.add(2)
        assert await core.answer_to(2) == ([7, 7], "length")
        assert not core.actor._frontends.stamps


async def test_a_request_aborted_during_its_first_step_is_forgotten() -> None:
    async with Core() as core:
        core.executor.silent = True
        core.add(1)
        await core.executor.planned.wait()
        core.requests.send_nowait(Abort(1))
        await core.describe()
        core.executor.silent = False
        core.executor.signal.set()
        core.add(2)
        assert await core.answer_to(2) == ([7, 7], "length")
        assert not core.actor._frontends.stamps
        assert (await core.describe()).free_blocks == 8


async def test_a_reset_of_the_prefix_cache_is_answered() -> None:
    async with Core() as core:
        core.requests.send_nowait(ResetPrefixCache(5))
        assert await core.outputs.receive() == UtilityReply(5)


async def test_a_draining_core_takes_no_new_requests() -> None:
    async with Core() as core:
        core.control.send_nowait(Drain(1.0))
        core.add(1)
        assert await core.answer_to(1) == ([], "EngineGenerateError")


async def test_its_load_is_posted_before_anyone_hears_of_it() -> None:
    async with Core() as core:
        assert core.posted[-1].load == LoadStats(0, 0, 0, 0, 8)
        core.add(1, tokens=20, max_tokens=3)
        await core.answer_to(1)
        last = core.posted[-1]
        assert (last.steps, last.message, last.load) == (3, "", LoadStats(0, 0, 0, 0, 8, prefix_queries=20))
        assert LoadStats(0, 1, 0, 2, 8, prefix_queries=20) in [status.load for status in core.posted]
        taken = [status.message for status in core.posted if status.message]
        assert taken == ["AddRequest", "StepResult 0", "StepResult 1", "StepResult 2"]


async def test_a_core_with_nothing_to_do_posts_nothing() -> None:
    async with Core() as core:
        core.add(1)
        await core.answer_to(1)
        await parked(core.task)
        posted = len(core.posted)
        core.executor.signal.set()
        await parked(core.task)
        assert len(core.posted) == posted


async def test_the_states_of_its_life() -> None:
    async with Core() as core:
        core.control.send_nowait(Drain(1.0))
        core.control.send_nowait(Drain(1.0))
        core.control.send_nowait(Stop())
        await core.task
        states = [status.state for status in core.posted]
        assert list(dict.fromkeys(states)) == ["starting", "ready", "draining", "stopping"]


@pytest.mark.parametrize("how", ["stop", "frontend leaves"])
async def test_the_core_leaves_in_good_order(how: str) -> None:
    async with Core() as core:
        core.requests.send_nowait(DescribeEngine(1))
        await core.outputs.receive()
        core.control.send_nowait(Stop()) if how == "stop" else core.requests.close()
        await core.task
        assert core.executor.stopped


async def test_a_frontend_that_does_not_read_holds_nobody_up_and_loses_nothing() -> None:
    async with Core() as core:
        fill(core.own[1])
        core.add(1, max_tokens=PLANS)
        await core.executor.many_plans.wait()
        while not isinstance(message := await core.outputs.receive(), StepOutputs):
            pass
        (delta,) = message.deltas
        assert (delta.tokens, delta.finish_reason) == ([7] * PLANS, "length")


@pytest.fixture
def parkings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Requests are parked at ten pending tokens; which, is added here."""
    monkeypatch.setattr(output_port, "PENDING_TOKENS", 10)
    numbers: list[int] = []
    park = Scheduler.park

    def spy(scheduler: Scheduler, request: int) -> bool:
        numbers.append(request)
        return park(scheduler, request)

    monkeypatch.setattr(Scheduler, "park", spy)
    return numbers


async def test_a_request_whose_tokens_nobody_takes_is_parked_and_goes_on_when_they_are_read(parkings: list[int]) -> None:
    async with Core() as core:
        fill(core.own[1])
        core.add(1, max_tokens=50)
        await core.idle()
        assert (parkings, core.executor.plans) == ([1], 11)
        stats = core.actor._scheduler.stats()
        assert (stats.running, stats.waiting, stats.parked, stats.free_blocks) == (0, 1, 1, 7)
        while isinstance(message := await core.outputs.receive(), UtilityReply):
            pass
        assert isinstance(message, StepOutputs)
        (delta,) = message.deltas
        assert (delta.position, delta.tokens, delta.finish_reason) == (0, [7] * 11, None)
        assert await core.answer_to(1, delta.tokens) == ([7] * 50, "length")
        description = await core.describe()
        assert (description.running, description.waiting, description.parked, description.free_blocks) == (0, 0, 0, 8)


async def test_a_parked_request_can_be_aborted(parkings: list[int]) -> None:
    async with Core() as core:
        fill(core.own[1])
        core.add(1, max_tokens=50)
        await core.idle()
        core.requests.send_nowait(Abort(1))
        await core.idle()
        assert {type(message) for message in receive_all(core.outputs)} == {UtilityReply}
        core.add(2, max_tokens=3)
        assert await core.answer_to(2) == ([7, 7, 7], "length")
        assert (await core.describe()).free_blocks == 8
