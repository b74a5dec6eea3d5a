"""Faults of the core's own: one about a request or a call is that one's alone, any other is the core's end."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from paper_core import Core

from ringpost.actors.boot import describe_failure
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.outputs import StepOutputs, UtilityReply
from ringpost.ipc.messages.requests import Abort, AddRequest, DescribeEngine
from ringpost.ipc.messages.results import CallResult, RowFailure

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


def fault(method: Callable[..., Any], number: int, *, late: bool = False) -> Callable[..., Any]:
    """A method of the scheduler that raises for one request, before or after it has done its work."""

    def faulty(request: AddRequest | int) -> Any:
        is_it = (request.request if isinstance(request, AddRequest) else request) == number
        result = method(request) if late or not is_it else None
        if is_it:
            raise RuntimeError(f"no luck with {number}")
        return result

    return faulty


async def failure_of(core: Core) -> Failure:
    """The next Failure; what other requests are told meanwhile is left out."""
    while not isinstance(message := await core.outputs.receive(), Failure):
        assert isinstance(message, StepOutputs)
    return message


@pytest.mark.parametrize("late", [False, True], ids=["before it is added", "after it was added"])
async def test_a_request_whose_handler_raises_fails_alone(
    late: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Core() as core:
        scheduler = core.actor._scheduler
        monkeypatch.setattr(scheduler, "add", fault(scheduler.add, 2, late=late))
        core.add(2)
        failure = await failure_of(core)
        assert (failure.actor, failure.kind, failure.message) == ("core0", "RuntimeError", "no luck with 2")
        assert failure.request == 2
        assert failure.pid > 0
        assert "in faulty" in failure.traceback
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert "no luck with 2" in record.getMessage()
        core.add(3)
        assert await core.answer_to(3) == ([7, 7], "length")
        assert (await core.describe()).free_blocks == 8
        assert not core.actor._frontends.stamps


async def test_requests_that_run_go_on_when_the_handler_of_another_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Core() as core:
        scheduler = core.actor._scheduler
        monkeypatch.setattr(scheduler, "add", fault(scheduler.add, 2))
        core.executor.silent = True
        core.add(1)
        await core.executor.planned.wait()
        core.add(2)
        assert (await failure_of(core)).request == 2
        core.executor.silent = False
        core.executor.signal.set()
        assert await core.answer_to(1) == ([7, 7], "length")


async def test_a_row_that_fails_is_told_with_the_workers_traceback() -> None:
    async with Core() as core:
        core.executor.next_failure = RowFailure(0, "FloatingPointError", "not finite", "in the sampler")
        core.add(1)
        failure = await failure_of(core)
        assert (failure.request, failure.kind, failure.traceback) == (1, "FloatingPointError", "in the sampler")


async def test_a_call_whose_handler_raises_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Core() as core:
        stats = core.actor._scheduler.stats
        errors = [RuntimeError("no numbers")]

        def faulty() -> Any:
            if errors:
                raise errors.pop()
            return stats()

        monkeypatch.setattr(core.actor._scheduler, "stats", faulty)
        core.requests.send_nowait(DescribeEngine(5))
        reply = await core.outputs.receive()
        assert isinstance(reply, UtilityReply)
        assert (reply.call, reply.ok) == (5, False)
        assert reply.message.startswith("core0 (pid ")
        assert reply.message.endswith("): RuntimeError: no numbers")
        core.add(1)
        assert await core.answer_to(1) == ([7, 7], "length")


async def test_a_request_that_cannot_even_be_dropped_is_the_cores_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Core() as core:
        scheduler = core.actor._scheduler
        monkeypatch.setattr(scheduler, "abort", fault(scheduler.abort, 2))
        core.requests.send_nowait(Abort(2))
        with pytest.raises(RuntimeError, match="no luck with 2"):
            await core.task


async def test_any_other_fault_is_the_cores_end_and_its_failure_names_the_message() -> None:
    async with Core() as core:
        core.executor.answers.append(CallResult(5, 0))
        core.executor.signal.set()
        with pytest.raises(AssertionError, match="nobody asked for CallResult") as caught:
            await core.task
        failure = describe_failure("core0", caught.value)
        assert (failure.actor, failure.kind, failure.request) == ("core0", "AssertionError", None)
        assert "in _on_call_result" in failure.traceback
        assert failure.traceback.rstrip().endswith("in the handler of CallResult")
