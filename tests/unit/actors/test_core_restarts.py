"""The core actor when its workers were replaced, and when one of its frontends has left."""

import pytest
from mailboxes import receive_all
from paper_core import Core

from ringpost.ipc.messages.control import Reattach
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.outputs import StepOutputs
from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.sampling import SamplingParams

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


def revive(core: Core) -> None:
    """The new workers have begun their epoch."""
    core.executor.ready = True
    core.executor.silent = False
    core.executor.signal.set()


async def test_requests_go_on_with_new_workers() -> None:
    async with Core() as core:
        core.executor.silent = True
        core.add(1, max_tokens=3)
        await core.executor.planned.wait()
        core.control.send_nowait(Reattach("worker0.0", 2, "worker0.0 died"))
        await core.idle()
        assert core.executor.epoch == 2
        planned = core.executor.plans
        core.add(2)  # waits with the others
        assert (await core.describe()).waiting == 2
        assert core.executor.plans == planned
        revive(core)
        tokens: dict[int, list[int]] = {1: [], 2: []}
        while tokens != {1: [7, 7, 7], 2: [7, 7]}:
            message = await core.outputs.receive()
            assert isinstance(message, StepOutputs)
            for delta in message.deltas:
                assert delta.position == len(tokens[delta.request])
                tokens[delta.request] += delta.tokens


async def test_results_of_the_dead_workers_still_count() -> None:
    async with Core() as core:
        core.executor.silent = True
        core.add(1, max_tokens=1)
        await core.executor.planned.wait()
        core.executor.silent = False  # published, and found only with the news of the death
        core.control.send_nowait(Reattach("worker0.0", 2))
        assert await core.answer_to(1) == ([7], "length")


async def test_news_that_it_knows_already_changes_nothing() -> None:
    async with Core() as core:
        core.executor.epoch = 3
        core.control.send_nowait(Reattach("worker0.0", 3))
        core.add(1)
        assert await core.answer_to(1) == ([7, 7], "length")
        assert core.executor.epoch == 3


async def test_a_request_that_workers_die_of_is_ended_with_the_reason() -> None:
    async with Core() as core:
        core.executor.silent = True
        core.add(1)
        for epoch in (2, 3, 4):
            core.executor.planned.clear()
            await core.idle() if core.executor.plans else await core.executor.planned.wait()
            core.control.send_nowait(Reattach("worker0.0", epoch, "worker0.0 (pid 9): ProcessDied: killed by signal 9"))
            await core.idle()
            core.executor.ready = True
            core.executor.signal.set()
        message = await core.outputs.receive()
        assert isinstance(message, Failure)
        assert (message.request, message.kind) == (1, "DeadlyRequest")
        assert message.message.startswith("worker0.0 (pid 9): ProcessDied: killed by signal 9; it computed this request alone")
        assert [status.alone for status in core.posted if status.alone is not None]
        assert core.posted[-1].alone is None


@pytest.mark.parametrize("died", [False, True], ids=["left", "died"])
async def test_requests_of_a_frontend_that_has_gone_end(died: bool) -> None:
    async with Core() as core:
        core.executor.silent = True
        for request in (1, 2):
            core.requests.send_nowait(AddRequest(request, "r", [5] * 3, SamplingParams(seed=0, max_tokens=50), 0.0))
        await core.executor.planned.wait()
        if died:
            core.handles.mark_gone(writer=True)
        else:
            core.lanes.close()
        await core.task
        assert core.executor.stopped  # it was the last one
        stats = core.actor._scheduler.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        assert receive_all(core.outputs) == []
