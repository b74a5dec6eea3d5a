"""DescribeEngine in the core: answered at once for the core alone, and for the workers once all of them have answered."""

import pytest
from mailboxes import receive_all
from paper_core import Core

from ringpost.ipc.messages.control import Reattach
from ringpost.ipc.messages.descriptions import WorkerDescription
from ringpost.ipc.messages.outputs import UtilityReply
from ringpost.ipc.messages.requests import DescribeEngine
from ringpost.ipc.messages.results import CallResult

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]

PHASES = {"update", "messages", "plan", "submit", "beside", "wait", "idle"}


def answer(core: Core, call: int, rank: int) -> WorkerDescription:
    """One of the two workers of a PaperExecutor describes itself."""
    described = WorkerDescription(rank, 10 + rank, "paper", "int", 1, 0, 0, 4, {"forward": 0.5 + rank})
    core.executor.answers.append(CallResult(call, rank, described))
    core.executor.signal.set()
    return described


async def reply_of(core: Core) -> UtilityReply:
    reply = await core.outputs.receive()
    assert isinstance(reply, UtilityReply)
    return reply


async def test_workers_are_asked_only_if_that_is_asked_for() -> None:
    async with Core() as core:
        description = await core.describe()
        assert (description.workers, core.executor.asked) == ([], [])
        assert description.phases.keys() == PHASES


async def test_the_last_worker_completes_the_answer() -> None:
    async with Core() as core:
        core.requests.send_nowait(DescribeEngine(5, workers=True))
        core.requests.send_nowait(DescribeEngine(6, workers=True))
        await core.idle()
        assert core.executor.asked == [5, 6]
        second, first = answer(core, 5, 1), answer(core, 6, 0)
        await core.idle()
        assert receive_all(core.outputs) == []
        other = answer(core, 5, 0)
        reply = await reply_of(core)
        assert (reply.call, reply.ok, reply.description and reply.description.workers) == (5, True, [other, second])
        last = answer(core, 6, 1)
        reply = await reply_of(core)
        assert (reply.call, reply.description and reply.description.workers) == (6, [first, last])


async def test_steps_go_on_meanwhile_and_are_timed() -> None:
    async with Core() as core:
        core.requests.send_nowait(DescribeEngine(5, workers=True))
        core.add(1, max_tokens=20)
        assert await core.answer_to(1) == ([7] * 20, "length")
        for rank in range(2):
            answer(core, 5, rank)
        description = (await reply_of(core)).description
        assert description is not None
        assert description.steps == 20
        assert min(description.phases[name] for name in ("update", "plan", "submit", "wait")) > 0


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_workers_that_are_replaced_do_not_answer(when: str) -> None:
    """Whoever asks learns it at once, and may ask again."""
    async with Core() as core:
        if when == "meanwhile":
            core.requests.send_nowait(DescribeEngine(5, workers=True))
            await core.idle()
        core.control.send_nowait(Reattach("worker0.0", 2))
        await core.idle()
        if when == "before":
            core.requests.send_nowait(DescribeEngine(5, workers=True))
        assert await reply_of(core) == UtilityReply(5, False, "the workers are being replaced, and cannot be asked")
        assert (await core.describe()).workers == []
        core.executor.ready = True
        core.requests.send_nowait(DescribeEngine(6, workers=True))
        await core.idle()
        described = [answer(core, 6, rank) for rank in range(2)]
        reply = await reply_of(core)
        assert reply.description is not None
        assert reply.description.workers == described
