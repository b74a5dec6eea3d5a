"""The core and sessions: what their messages do, while it is paused too, and whom a mistake concerns."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from paper_core import Core

from ringpost.ipc.messages.control import Reattach
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.outputs import StepOutputs, UtilityReply
from ringpost.ipc.messages.requests import (
    FRONTEND_SHIFT,
    Abort,
    AddRequest,
    CloseSession,
    Fork,
    PauseGeneration,
    ResumeGeneration,
    Truncate,
)
from ringpost.ipc.messages.sampling import SamplingParams

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]
ONE, TWO = 71, 72  # sessions
ANSWER = ([7, 7], "length")


def add_turn(core: Core, request: int, tokens: int = 20, base: int = 0, session: int = ONE, max_tokens: int = 2) -> None:
    params = SamplingParams(seed=0, max_tokens=max_tokens)
    core.requests.send_nowait(AddRequest(request, "s", [request] * tokens, params, 0.0, session=session, base=base))


def tokens_of(core: Core, session: int = ONE) -> list[int]:
    scheduler: Any = core.actor._scheduler
    found: list[int] = scheduler.places.sessions.contexts[session].token_ids
    return found


async def test_turns_follow_one_another_and_the_session_keeps_its_blocks() -> None:
    async with Core() as core:
        add_turn(core, 1)
        assert await core.answer_to(1) == ANSWER
        description = await core.describe()
        assert (description.running, description.waiting, description.free_blocks) == (0, 0, 6)
        assert (description.sessions, description.sessions_evicted) == (1, 0)
        add_turn(core, 2, 3, base=22)
        message = await core.outputs.receive()
        assert isinstance(message, StepOutputs)
        assert [delta.cached_tokens for delta in message.deltas] == [21]
        assert await core.answer_to(2, [7]) == ANSWER
        assert tokens_of(core) == [*[1] * 20, 7, 7, 2, 2, 2, 7, 7]
        core.requests.send_nowait(CloseSession(ONE))
        description = await core.describe()
        assert (description.sessions, description.free_blocks) == (0, 8)
        core.requests.send_nowait(CloseSession(ONE))
        assert (await core.describe()).sessions == 0


async def test_a_session_is_cut_and_forked() -> None:
    async with Core() as core:
        add_turn(core, 1)
        await core.answer_to(1)
        core.requests.send_nowait(Fork(ONE, TWO, 21))
        core.requests.send_nowait(Truncate(ONE, 5))
        core.requests.send_nowait(Truncate(75, 5))
        description = await core.describe()
        assert (description.sessions, description.free_blocks) == (2, 6)
        assert (tokens_of(core), tokens_of(core, TWO)) == ([1] * 5, [*[1] * 20, 7])
        add_turn(core, 2, base=21, session=TWO)
        assert await core.answer_to(2) == ANSWER
        add_turn(core, 3, base=5)
        assert await core.answer_to(3) == ANSWER


async def test_a_session_that_is_closed_takes_its_turn_along() -> None:
    async with Core() as core:
        core.executor.silent = True
        add_turn(core, 1)
        await core.executor.planned.wait()
        core.requests.send_nowait(CloseSession(ONE))
        description = await core.describe()
        assert (description.sessions, description.running, description.free_blocks) == (0, 0, 8)
        assert (core.actor._frontends.live, len(core.actor._frontends.stamps)) == ([set()], 0)
        core.executor.silent = False
        core.executor.signal.set()
        core.add(2)
        assert await core.answer_to(2) == ([7, 7], "length")


async def test_an_aborted_turn_leaves_the_session_open() -> None:
    async with Core() as core:
        core.executor.silent = True
        add_turn(core, 1, max_tokens=30)
        await core.executor.planned.wait()
        core.requests.send_nowait(Abort(1))
        assert (await core.describe()).sessions == 1
        add_turn(core, 2, 3, base=20)
        core.executor.silent = False
        core.executor.signal.set()
        assert await core.answer_to(2) == ANSWER


@pytest.mark.parametrize("how", [lambda core: core.lanes.close(), lambda core: core.handles.mark_gone(writer=True)])
async def test_the_sessions_of_a_frontend_that_has_left_are_closed(how: Callable[[Core], None]) -> None:
    async with Core() as core:
        scheduler = core.actor._scheduler
        add_turn(core, 1)
        await core.answer_to(1)
        other = (1 << FRONTEND_SHIFT) | 1
        scheduler.add(AddRequest(other, "s", [1], SamplingParams(seed=0, max_tokens=1), 0.0, session=other))
        assert scheduler.open_sessions() == [ONE, other]
        how(core)
        await core.task
        assert scheduler.open_sessions() == [other]


async def test_what_a_frontend_has_wrong_about_a_session_is_its_turns_failure(caplog: pytest.LogCaptureFixture) -> None:
    async with Core() as core:
        add_turn(core, 1)
        await core.answer_to(1)
        add_turn(core, 2, base=23)
        failure = await core.outputs.receive()
        assert isinstance(failure, Failure)
        assert (failure.request, failure.kind) == (2, "SessionMismatch")
        assert failure.message == "turn 2 of session 71 follows 23 tokens, but 22 are known of the session"
        assert "23 tokens" in caplog.text
        add_turn(core, 3, base=22)
        assert await core.answer_to(3) == ANSWER


async def test_a_fork_that_cannot_be_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with Core() as core:
        add_turn(core, 1)
        await core.answer_to(1)
        core.requests.send_nowait(Fork(ONE, TWO, 23))
        core.requests.send_nowait(Fork(75, TWO, 1))
        assert (await core.describe()).sessions == 1
        assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
        core.requests.send_nowait(Fork(ONE, TWO, 22))
        core.requests.send_nowait(Fork(ONE, TWO, 22))
        assert (await core.describe()).sessions == 2
        add_turn(core, 2, base=22, session=TWO)
        assert await core.answer_to(2) == ANSWER


@pytest.mark.parametrize(("message", "left"), [(Truncate(ONE, 5), []), (Fork(ONE, TWO, 5), [ONE])], ids=["truncate", "fork"])
async def test_a_fault_of_the_cores_own_costs_one_session(
    message: Truncate | Fork, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Core() as core:
        scheduler = core.actor._scheduler
        add_turn(core, 1)
        await core.answer_to(1)

        def broken(method: Callable[..., Any]) -> Callable[..., Any]:
            def late(*args: int) -> None:
                method(*args)
                raise RuntimeError("no luck")

            return late

        for name in ("truncate_session", "fork_session"):
            monkeypatch.setattr(scheduler, name, broken(getattr(scheduler, name)))
        core.requests.send_nowait(message)
        description = await core.describe()
        assert scheduler.open_sessions() == left
        assert description.free_blocks == (6 if left else 8)


async def test_turns_are_held_while_the_core_is_paused_and_what_is_cut_or_closed_is_not() -> None:
    async with Core() as core:
        add_turn(core, 1)
        await core.answer_to(1)
        core.requests.send_nowait(PauseGeneration(50, "keep"))
        assert await core.outputs.receive() == UtilityReply(50)
        core.requests.send_nowait(Fork(ONE, TWO, 22))
        core.requests.send_nowait(Truncate(ONE, 21))
        add_turn(core, 2, 3, base=21)
        add_turn(core, 3, 3, base=22, session=TWO)
        add_turn(core, 4, 3, session=73)
        core.requests.send_nowait(CloseSession(TWO))
        core.requests.send_nowait(CloseSession(73))
        description = await core.describe()
        assert (description.waiting, description.sessions, description.free_blocks) == (1, 1, 6)
        assert core.actor._frontends.live == [{2}]
        core.requests.send_nowait(ResumeGeneration(60))
        assert await core.outputs.receive() == UtilityReply(60)
        assert await core.answer_to(2) == ANSWER
        assert core.actor._scheduler.open_sessions() == [ONE]


async def test_sessions_outlive_the_pause_that_aborts_and_the_workers() -> None:
    async with Core() as core:
        core.executor.silent = True
        add_turn(core, 1, max_tokens=30)
        await core.executor.planned.wait()
        core.requests.send_nowait(PauseGeneration(50, "abort"))
        assert await core.answer_to(1) == ([], "abort")
        core.requests.send_nowait(ResumeGeneration(60))
        core.control.send_nowait(Reattach("worker0.0", 2, "worker0.0 died"))
        await core.idle()
        add_turn(core, 2, 3, base=20)
        core.executor.ready, core.executor.silent = True, False
        core.executor.signal.set()
        while isinstance(message := await core.outputs.receive(), UtilityReply):
            assert message.call in (50, 60)
        assert isinstance(message, StepOutputs)
        assert [(delta.request, delta.tokens, delta.cached_tokens) for delta in message.deltas] == [(2, [7], 0)]
