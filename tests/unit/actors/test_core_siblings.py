"""The core and requests that share a prompt; and what the workers say besides tokens."""

import pytest
from mailboxes import receive_all
from paper_core import Core

from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.outputs import StepOutputs, TokenDelta, TokenLogprobs
from ringpost.ipc.messages.requests import Abort
from ringpost.ipc.messages.results import PromptLogprobs, RowFailure

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


async def ends_of(core: Core, *requests: int) -> dict[int, str]:
    """How these requests end; each has its own positions and stamps."""
    counts: dict[int, int] = {}
    ends: dict[int, str] = {}
    while not ends.keys() >= set(requests):
        message = await core.outputs.receive()
        if isinstance(message, Failure):
            assert message.request is not None
            ends[message.request] = message.kind
            continue
        assert isinstance(message, StepOutputs)
        for delta in message.deltas:
            assert delta.position == counts.get(delta.request, 0)
            assert (delta.scheduled >= delta.queued > 0) == (not delta.position)
            counts[delta.request] = delta.position + len(delta.tokens)
            if delta.finish_reason is not None:
                ends[delta.request] = delta.finish_reason
    return ends


async def test_each_is_answered_and_nothing_is_left() -> None:
    async with Core() as core:
        core.add(1, siblings=[2, 3])
        assert await ends_of(core, 1, 2, 3) == {1: "length", 2: "length", 3: "length"}
        assert core.actor._frontends.live == [set()]
        assert not core.actor._frontends.stamps
        assert (await core.describe()).free_blocks == 8


async def test_one_that_follows_can_be_aborted_and_counts_as_waiting() -> None:
    async with Core() as core:
        core.executor.silent = True
        core.add(1, siblings=[2, 3])
        await core.executor.planned.wait()
        core.requests.send_nowait(Abort(2))
        description = await core.describe()
        assert (description.running, description.waiting) == (1, 1)
        core.executor.silent = False
        core.executor.signal.set()
        assert await ends_of(core, 1, 3) == {1: "length", 3: "length"}
        assert core.actor._frontends.live == [set()]


async def test_when_they_cannot_run_the_leader_is_told() -> None:
    async with Core() as core:
        core.add(1, tokens=64, siblings=[2, 3])
        assert await core.answer_to(1) == ([], "RequestTooLong")
        assert core.actor._frontends.live == [set()]
        assert not core.actor._frontends.stamps
        core.add(2, siblings=[3])
        assert await ends_of(core, 2, 3) == {2: "length", 3: "length"}


async def test_when_adding_them_raises_none_of_them_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Core() as core:
        scheduler = core.actor._scheduler
        add = scheduler.add

        def faulty(request: object) -> None:
            add(request)  # type: ignore[arg-type]
            raise RuntimeError("no luck")

        monkeypatch.setattr(scheduler, "add", faulty)
        core.add(1, siblings=[2, 3])
        assert await core.answer_to(1) == ([], "RuntimeError")
        description = await core.describe()
        assert (description.running, description.waiting, description.free_blocks) == (0, 0, 8)
        assert core.actor._frontends.live == [set()]


async def test_a_leader_that_fails_leaves_the_others() -> None:
    async with Core() as core:
        core.executor.next_failure = RowFailure(0, "RuntimeError", "not finite")
        core.add(1, siblings=[2, 3])
        assert await ends_of(core, 1, 2, 3) == {1: "RuntimeError", 2: "length", 3: "length"}


async def test_those_of_a_frontend_that_has_left_end_with_it() -> None:
    async with Core() as core:
        core.executor.silent = True
        core.add(1, siblings=[2, 3])
        await core.executor.planned.wait()
        core.lanes.close()
        await core.task
        assert not core.actor._scheduler.stats().waiting


async def test_logprobs_reach_the_frontend() -> None:
    async with Core() as core:
        entry = TokenLogprobs(-1.0, 2, b"1234", b"5678")
        core.executor.logprobs = entry
        core.executor.prompt_logprobs = [PromptLogprobs(0, 1, [entry, entry])]
        core.add(1)
        deltas: list[TokenDelta] = []
        while not deltas or deltas[-1].finish_reason is None:
            message = await core.outputs.receive()
            assert isinstance(message, StepOutputs)
            deltas += message.deltas
        assert [(delta.logprobs, delta.prompt_logprobs, delta.prompt_start) for delta in deltas] == [
            ([entry], [entry, entry], 1),
            ([entry], [], 0),
        ]


async def test_logprobs_that_no_message_can_hold_are_the_end_of_their_request() -> None:
    async with Core() as core:
        core.executor.logprobs = TokenLogprobs(-1.0, 2, bytes(1 << 15), bytes(1 << 15))
        core.add(1, max_tokens=50)
        assert await core.answer_to(1) == ([], "LogprobsTooLarge")
        core.executor.logprobs = None
        core.add(2)
        assert await core.answer_to(2) == ([7, 7], "length")
        assert (await core.describe()).free_blocks == 8
        assert receive_all(core.outputs) == []
