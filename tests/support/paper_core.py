"""An engine core with a real scheduler and mailboxes, and workers that exist on paper only."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from mailboxes import make_ring

from ringpost.actors.engine_core.actor import EngineCore
from ringpost.actors.engine_core.output_port import OutputPort
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.config import CacheConfig, SchedulerConfig
from ringpost.ipc.messages.control import ToActor
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.outputs import OutputMessage, StepOutputs, UtilityReply
from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.requests import AddRequest, DescribeEngine, RequestMessage
from ringpost.ipc.messages.results import ResultMessage, RowFailure, StepResult
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.ipc.parking import Signal
from ringpost.sched.scheduler import Scheduler

PLANS = 40


class PaperExecutor:
    """Answers every plan with token 7 for each row, or as it was told."""

    def __init__(self) -> None:
        self.answers: list[ResultMessage] = []
        self.next_failure: Failure | RowFailure | None = None
        self.stopped = False
        self.silent = False  # keeps its answers to itself
        self.planned = asyncio.Event()
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
        self.planned.set()
        if not self.silent:
            self.signal.set()

    def results(self) -> Iterator[ResultMessage]:
        self.signal.clear()
        if self.silent:
            return
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
        self.actor = EngineCore("core0", scheduler, self.executor, [self.own[0]], [OutputPort(self.own[1])], self.own[2])

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
