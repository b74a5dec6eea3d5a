"""The core actor with a real scheduler and mailboxes, and workers that exist on paper only."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from mailboxes import fill, make_ring

from ringpost.actors.engine_core.actor import EngineCore
from ringpost.actors.engine_core.output_port import OutputPort
from ringpost.actors.errors import ActorFailed
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.config import CacheConfig, SchedulerConfig
from ringpost.ipc.messages.control import Drain, Stop, ToActor
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.outputs import OutputMessage, StepOutputs, UtilityReply
from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.requests import Abort, AddRequest, DescribeEngine, Fork, RequestMessage, ResetPrefixCache
from ringpost.ipc.messages.results import ResultMessage, RowFailure, StepResult
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.ipc.parking import Signal
from ringpost.sched.scheduler import Scheduler

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


PLANS = 40


class PaperExecutor:
    """Answers every plan with token 7 for each row, or as it was told."""

    def __init__(self) -> None:
        self.answers: list[ResultMessage] = []
        self.next_failure: Failure | RowFailure | None = None
        self.stopped = False
        self.plans = 0
        self.many_plans = asyncio.Event()
        self.signal = Signal()

    async def start(self) -> int:
        return 8

    async def submit(self, plan: StepPlan) -> None:
        self.plans += 1
        if self.plans == PLANS:
            self.many_plans.set()
        failure, self.next_failure = self.next_failure, None
        if isinstance(failure, Failure):
            self.answers.append(failure)
        else:
            self.answers.append(StepResult(plan.step, [7] * len(plan.sample), [failure] if failure else []))
        self.signal.set()

    def results(self) -> Iterator[ResultMessage]:
        self.signal.clear()
        answers, self.answers = self.answers, []
        yield from answers

    def ends(self) -> Sequence[Signal]:
        return [self.signal]

    async def stop(self) -> None:
        self.stopped = True


class Core:
    """A running core, with the ends of its mailboxes that belong to others."""

    def __init__(self) -> None:
        requests, outputs, control = make_ring(union=RequestMessage), make_ring(1 << 16), make_ring(union=ToActor)
        self.requests: Sender[RequestMessage] = Sender(requests.duplicate(), RequestMessage)
        self.outputs: Receiver[OutputMessage] = Receiver(outputs.duplicate(), OutputMessage)
        self.control: Sender[ToActor] = Sender(control.duplicate(), ToActor)
        self.executor = PaperExecutor()
        scheduler = Scheduler(SchedulerConfig(), CacheConfig(), num_blocks=8, max_model_len=64)
        self.own: list[Any] = [Receiver(requests, RequestMessage), Sender(outputs, OutputMessage), Receiver(control, ToActor)]
        self.actor = EngineCore(scheduler, self.executor, [self.own[0]], [OutputPort(self.own[1])], self.own[2])

    async def __aenter__(self) -> "Core":
        self.task = asyncio.create_task(self.actor.run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        for end in (self.requests, self.outputs, self.control, *self.own):
            end.close()

    def add(self, request: int, tokens: int = 3, max_tokens: int = 2) -> None:
        params = SamplingParams(seed=0, max_tokens=max_tokens)
        self.requests.send_nowait(AddRequest(request, "r", [5] * tokens, params, 0.0))

    async def answer_to(self, request: int) -> tuple[list[int], Any]:
        """All tokens of a request, and how it ended."""
        tokens: list[int] = []
        while True:
            message = await self.outputs.receive()
            if isinstance(message, Failure):
                assert message.request == request
                return tokens, message.kind
            assert isinstance(message, StepOutputs)
            for delta in message.deltas:
                assert (delta.request, delta.position) == (request, len(tokens))
                assert (delta.scheduled > 0) == (not tokens)
                tokens += delta.tokens
                if delta.finish_reason is not None:
                    return tokens, delta.finish_reason

    async def describe(self) -> Any:
        self.requests.send_nowait(DescribeEngine(77))
        reply = await self.outputs.receive()
        assert isinstance(reply, UtilityReply)
        return reply.description


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
