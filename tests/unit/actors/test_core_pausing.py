"""The core while generation is paused, in each mode, and how it goes on."""

from collections import defaultdict
from collections.abc import Iterator
from typing import get_args

import pytest
from mailboxes import parked
from paper_core import Core

from ringpost.actors.engine_core.pausing import Pausing, members_of
from ringpost.ipc.messages.config import CacheConfig, SchedulerConfig
from ringpost.ipc.messages.control import Drain, Reattach, Stop
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.outputs import UtilityReply
from ringpost.ipc.messages.requests import Abort, AddRequest, PauseGeneration, PauseMode, ResumeGeneration, Sibling
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.sched.scheduler import Scheduler

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]
MODES: tuple[PauseMode, ...] = get_args(PauseMode)
PAUSE, RESUME = 50, 60


class Paused:
    """A core with a request 1 that runs, whose workers keep their answers to themselves at first; and all that it tells."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.tokens: dict[int, int] = defaultdict(int)
        self.ends: dict[int, str] = {}
        self.replies: list[int] = []
        self.refused: list[str] = []

    async def begin(self, max_tokens: int = 5) -> None:
        self.core.executor.silent = True
        self.core.add(1, max_tokens=max_tokens)
        await self.core.executor.planned.wait()

    def answer(self) -> None:
        """The workers answer from now on."""
        self.core.executor.silent = False
        self.core.executor.signal.set()

    def pause(self, mode: PauseMode, call: int = PAUSE, *, clear_cache: bool = True) -> None:
        self.core.requests.send_nowait(PauseGeneration(call, mode, clear_cache))

    def resume(self) -> None:
        self.core.requests.send_nowait(ResumeGeneration(RESUME))

    async def hear(self) -> None:
        """Take a message."""
        message = await self.core.outputs.receive()
        if isinstance(message, UtilityReply):
            self.replies.append(message.call)
            self.refused += [] if message.ok else [message.message]
        elif isinstance(message, Failure):
            assert message.request is not None
            self.ends[message.request] = message.kind
        else:
            for delta in message.deltas:
                assert delta.request not in self.ends
                assert delta.position == self.tokens[delta.request]
                self.tokens[delta.request] += len(delta.tokens)
                if delta.finish_reason is not None:
                    self.ends[delta.request] = delta.finish_reason

    async def until_reply(self, call: int) -> None:
        while call not in self.replies:
            await self.hear()

    async def until_ended(self, *requests: int) -> None:
        while not self.ends.keys() >= set(requests):
            await self.hear()


async def test_to_keep_is_to_plan_nothing_more_and_to_go_on_where_it_was() -> None:
    async with Core() as core:
        paused = Paused(core)
        await paused.begin()
        paused.pause("keep")
        await core.idle()
        paused.answer()
        await paused.until_reply(PAUSE)
        assert paused.tokens == {1: 1}, "answered only when nothing is in flight"
        core.add(2, max_tokens=3, siblings=[3])
        description = await core.describe()
        assert (description.paused, description.running, description.waiting, description.steps) == (True, 1, 2, 1)
        await parked(core.task)
        assert core.executor.plans == 1
        paused.resume()
        await paused.until_ended(1, 2, 3)
        assert (dict(paused.tokens), set(paused.ends.values())) == ({1: 5, 2: 3, 3: 3}, {"length"})
        assert paused.replies == [PAUSE, RESUME]
        assert not (await core.describe()).paused


async def test_to_wait_is_to_finish_what_is_there_and_to_hold_what_comes() -> None:
    async with Core() as core:
        paused = Paused(core)
        await paused.begin()
        core.add(2, max_tokens=8)
        paused.pause("wait")
        core.add(3)
        paused.answer()
        await paused.until_reply(PAUSE)
        assert paused.ends == {1: "length", 2: "length"}
        description = await core.describe()
        assert (description.paused, description.running, description.waiting) == (True, 0, 1)
        assert core.actor._frontends.stamps, "it was queued when it came"
        paused.resume()
        await paused.until_ended(3)
        assert paused.tokens[3] == 2


async def test_to_abort_is_to_end_all_that_is_unfinished() -> None:
    async with Core() as core:
        paused = Paused(core)
        await paused.begin(max_tokens=50)
        core.add(2, siblings=[4])
        paused.pause("abort")
        core.add(3)
        await core.idle()
        assert not paused.replies
        paused.answer()
        await paused.until_reply(PAUSE)
        assert paused.ends == {1: "abort", 2: "abort", 4: "abort"}
        description = await core.describe()
        assert (description.running, description.waiting, description.free_blocks) == (0, 1, 8)
        assert core.actor._frontends.live == [{3}]
        paused.resume()
        await paused.until_ended(3)
        assert paused.tokens == {1: 0, 2: 0, 4: 0, 3: 2}


async def test_those_that_are_ended_are_told_from_where_they_are() -> None:
    async with Core() as core:
        paused = Paused(core)
        await paused.begin(max_tokens=50)
        paused.answer()
        while paused.tokens[1] < 3:
            await paused.hear()
        paused.pause("abort")
        await paused.until_ended(1)
        await paused.until_reply(PAUSE)
        assert paused.tokens[1] >= 3


@pytest.mark.parametrize("mode", MODES)
async def test_with_nothing_to_do_it_is_answered_at_once(mode: PauseMode) -> None:
    async with Core() as core:
        paused = Paused(core)
        paused.pause(mode)
        await paused.until_reply(PAUSE)
        await parked(core.task)


@pytest.mark.parametrize("clear_cache", [True, False])
async def test_the_prefix_cache_is_emptied_where_wanted(clear_cache: bool) -> None:
    async with Core() as core:
        paused = Paused(core)
        core.add(1, tokens=20)
        await paused.until_ended(1)
        paused.pause("wait", clear_cache=clear_cache)
        await paused.until_reply(PAUSE)
        paused.resume()
        core.add(2, tokens=20)
        await paused.until_ended(2)
        assert core.actor._scheduler.stats().prefix_hits == (0 if clear_cache else 16)


async def test_a_second_one_counts_by_its_own_rules() -> None:
    async with Core() as core:
        paused = Paused(core)
        await paused.begin(max_tokens=4)
        paused.pause("keep")
        paused.answer()
        await paused.until_reply(PAUSE)
        core.add(2)
        paused.pause("wait", 51)
        await paused.until_reply(51)
        assert paused.ends == {1: "length"}
        paused.pause("abort", 52)
        await paused.until_reply(52)
        assert paused.ends == {1: "length", 2: "abort"}


async def test_one_that_comes_before_the_first_is_answered_answers_both() -> None:
    async with Core() as core:
        paused = Paused(core)
        await paused.begin(max_tokens=50)
        paused.pause("wait")
        paused.pause("keep", 51)
        await core.idle()
        paused.answer()
        await paused.until_reply(51)
        assert (paused.replies, paused.tokens[1]) == ([PAUSE, 51], 1)


async def test_to_resume_answers_whoever_still_waits() -> None:
    async with Core() as core:
        paused = Paused(core)
        await paused.begin()
        paused.pause("keep")
        paused.resume()
        await paused.until_reply(RESUME)
        assert paused.replies == [PAUSE, RESUME]
        paused.answer()
        await paused.until_ended(1)
        assert paused.tokens[1] == 5


async def test_what_is_held_can_be_aborted() -> None:
    async with Core() as core:
        paused = Paused(core)
        paused.pause("wait")
        core.add(2, siblings=[3, 4])
        core.add(5)
        for request in (2, 4, 5):
            core.requests.send_nowait(Abort(request))
        assert (await described(core, paused)) == 1
        paused.resume()
        await paused.until_ended(3)
        assert paused.tokens == {3: 2}
        assert core.actor._frontends.live == [set()]
        assert not core.actor._frontends.stamps


async def described(core: Core, paused: Paused) -> int:
    """The requests that wait, once the pause is answered."""
    await paused.until_reply(PAUSE)
    waiting: int = (await core.describe()).waiting
    return waiting


async def test_what_is_held_and_cannot_run_fails_when_it_is_taken_up() -> None:
    async with Core() as core:
        paused = Paused(core)
        paused.pause("keep")
        core.add(2, tokens=64, siblings=[3])
        await paused.until_reply(PAUSE)
        assert not paused.ends
        paused.resume()
        await paused.until_ended(2)
        assert paused.ends == {2: "RequestTooLong"}
        assert core.actor._frontends.live == [set()]
        assert not core.actor._frontends.stamps


async def test_what_is_held_of_a_resumed_request_keeps_its_place() -> None:
    async with Core() as core:
        paused = Paused(core)
        paused.pause("wait")
        core.requests.send_nowait(AddRequest(2, "r", [5] * 3, SamplingParams(seed=0, max_tokens=9), 0.0, output=[7, 7]))
        paused.tokens[2] = 2
        await paused.until_reply(PAUSE)
        paused.pause("abort", 51)
        await paused.until_reply(51)
        assert paused.ends == {2: "abort"}


async def test_to_drain_is_to_finish_what_was_kept_and_held() -> None:
    async with Core() as core:
        paused = Paused(core)
        await paused.begin()
        paused.pause("keep")
        core.add(2)
        paused.answer()
        await paused.until_reply(PAUSE)
        core.control.send_nowait(Drain(1.0))
        await paused.until_ended(1, 2)
        paused.pause("keep", 51)
        await paused.until_reply(51)
        assert paused.refused == ["the engine is shutting down and cannot be paused"]
        assert not (await core.describe()).paused


async def test_it_can_be_stopped() -> None:
    async with Core() as core:
        paused = Paused(core)
        paused.pause("keep")
        await paused.until_reply(PAUSE)
        core.control.send_nowait(Stop())
        await core.task
        assert core.executor.stopped


async def test_a_frontend_that_leaves_takes_what_is_held_along() -> None:
    async with Core() as core:
        paused = Paused(core)
        paused.pause("keep")
        core.add(2)
        await paused.until_reply(PAUSE)
        core.lanes.close()
        await core.task
        assert core.actor._pausing.num_held == 0


async def test_new_workers_end_the_steps_that_it_waits_for_and_it_stays_paused() -> None:
    async with Core() as core:
        paused = Paused(core)
        await paused.begin()
        paused.pause("keep")
        await core.idle()
        core.control.send_nowait(Reattach("worker0.0", 2, "worker0.0 died"))
        await paused.until_reply(PAUSE)
        core.executor.ready = True
        paused.answer()
        await core.idle()
        assert core.executor.plans == 1
        paused.resume()
        await paused.until_ended(1)
        assert paused.tokens[1] == 5


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (False, False)])
async def test_one_of_several_calls_is_enough_to_empty_the_prefix_cache(wanted: tuple[bool, bool]) -> None:
    async with Core() as core:
        paused = Paused(core)
        core.add(1, tokens=20)
        await paused.until_ended(1)
        core.executor.planned.clear()
        core.executor.silent = True
        core.add(2)
        await core.executor.planned.wait()
        for call, clear_cache in zip((PAUSE, 51), wanted, strict=True):
            paused.pause("wait", call, clear_cache=clear_cache)
        paused.answer()
        await paused.until_reply(51)
        paused.resume()
        core.add(3, tokens=20)
        await paused.until_ended(3)
        assert core.actor._scheduler.stats().prefix_hits == (0 if any(wanted) else 16)


async def test_what_is_held_counts_as_waiting_in_the_load() -> None:
    async with Core() as core:
        paused = Paused(core)
        paused.pause("keep")
        core.add(2, siblings=[3])
        await paused.until_reply(PAUSE)
        await core.describe()
        load = core.posted[-1].load
        assert load is not None
        assert load.waiting == 2


async def test_to_drop_what_is_held_goes_through_none_of_the_rest() -> None:
    class Counted(tuple[Sibling, ...]):
        passes = 0

        def __iter__(self) -> Iterator[Sibling]:
            self.passes += 1
            return super().__iter__()

    siblings = Counted(Sibling(number, number) for number in range(2, 50))
    pausing = Pausing(Scheduler(SchedulerConfig(), CacheConfig(), num_blocks=8, max_model_len=64))
    pausing.hold(AddRequest(1, "r", [5], SamplingParams(seed=0), 0.0, siblings=siblings))
    siblings.passes = 0
    for number in range(1, 48):
        pausing.drop({number})
    assert (siblings.passes, pausing.num_held) == (0, 2)
    [request] = pausing.resume()[1]
    assert members_of(request) == [48, 49]
