"""The core actor: requests that end well, fail or are aborted, and how the core itself ends."""

import pytest
from mailboxes import fill
from paper_core import PLANS, Core

from ringpost.actors.errors import ActorFailed
from ringpost.ipc.messages.control import Drain, Stop
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.outputs import StepOutputs, UtilityReply
from ringpost.ipc.messages.requests import Abort, DescribeEngine, Fork, ResetPrefixCache
from ringpost.ipc.messages.results import RowFailure

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
        assert core.actor._scheduled == {}


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
        assert core.actor._scheduled == {}
        assert (await core.describe()).free_blocks == 8


async def test_a_session_message_is_refused() -> None:
    async with Core() as core:
        core.requests.send_nowait(Fork(1, 2, 0))
        assert await core.answer_to(1) == ([], "NotImplementedError")


async def test_a_reset_of_the_prefix_cache_is_answered() -> None:
    async with Core() as core:
        core.requests.send_nowait(ResetPrefixCache(5))
        assert await core.outputs.receive() == UtilityReply(5)


async def test_a_draining_core_takes_no_new_requests() -> None:
    async with Core() as core:
        core.control.send_nowait(Drain(1.0))
        core.add(1)
        assert await core.answer_to(1) == ([], "EngineGenerateError")


@pytest.mark.parametrize("how", ["stop", "frontend leaves"])
async def test_the_core_leaves_in_good_order(how: str) -> None:
    async with Core() as core:
        core.requests.send_nowait(DescribeEngine(1))
        await core.outputs.receive()
        core.control.send_nowait(Stop()) if how == "stop" else core.requests.close()
        await core.task
        assert core.executor.stopped


async def test_the_failure_of_a_worker_is_the_cores_end() -> None:
    async with Core() as core:
        failure = Failure("worker0.0", 123, "MemoryError", "too large")
        core.executor.next_failure = failure
        core.add(1)
        with pytest.raises(ActorFailed, match=r"worker0\.0 \(pid 123\): MemoryError: too large") as caught:
            await core.task
        assert caught.value.failure is failure


async def test_a_frontend_that_does_not_read_holds_nobody_up_and_loses_nothing() -> None:
    async with Core() as core:
        fill(core.own[1])
        core.add(1, max_tokens=PLANS)
        await core.executor.many_plans.wait()
        while not isinstance(message := await core.outputs.receive(), StepOutputs):
            pass
        (delta,) = message.deltas
        assert (delta.tokens, delta.finish_reason) == ([7] * PLANS, "length")
