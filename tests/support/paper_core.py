"""An engine core with a real scheduler and mailboxes, and workers that exist on paper only."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from mailboxes import make_lanes, make_ring

from ringpost.actors.engine_core.actor import EngineCore
from ringpost.actors.engine_core.output_port import OutputPort
from ringpost.actors.engine_core.request_port import RequestPort
from ringpost.actors.status import StatusBlock
from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.lanes import LaneReceiver, LaneSender
from ringpost.ipc.mailbox import Receiver
from ringpost.ipc.messages.config import CacheConfig, SchedulerConfig
from ringpost.ipc.messages.control import ToActor
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.outputs import OutputMessage, StepOutputs, TokenLogprobs, UtilityReply
from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.requests import AddRequest, DescribeEngine, RequestMessage, Sibling
from ringpost.ipc.messages.results import PromptLogprobs, ResultMessage, RowFailure, StepResult
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.ipc.messages.status import ActorStatus
from ringpost.ipc.parking import Signal
from ringpost.sched.scheduler import Scheduler

PLANS = 40


class PaperExecutor:
    """Answers every plan with token 7 for each row, or as it was told."""

    def __init__(self) -> None:
        self.answers: list[ResultMessage] = []
        self.next_failure: RowFailure | None = None
        self.logprobs: TokenLogprobs | None = None  # of each token
        self.prompt_logprobs: list[PromptLogprobs] = []  # of the next step
        self.ready = True
        self.epoch = 1
        self.stopped = False
        self.asked: list[int] = []  # calls that ask the workers to describe themselves
        self.silent = False  # keeps its answers to itself
        self.planned = asyncio.Event()
        self.waited_for = asyncio.Event()
        self.plans = 0
        self.many_plans = asyncio.Event()
        self.signal = Signal()

    def begin(self, epoch: int) -> None:
        """New workers, who know nothing of what the old ones were sent, and are not ready until told so."""
        self.ready, self.epoch = False, epoch
        self.answers.clear()

    @property
    def num_workers(self) -> int:
        return 2

    def describe(self, call: int) -> None:
        self.asked.append(call)

    async def submit(self, plan: StepPlan) -> None:
        self.plans += 1
        if self.plans == PLANS:
            self.many_plans.set()
        failure, self.next_failure = self.next_failure, None
        logprobs = [self.logprobs] * (len(plan.sample) if self.logprobs else 0)
        told, self.prompt_logprobs = self.prompt_logprobs, []
        failures = [failure] if failure else []
        self.answers.append(StepResult(plan.step, [7] * len(plan.sample), failures, logprobs, told))
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
        self.waited_for.set()
        return [self.signal]

    async def stop(self) -> None:
        self.stopped = True


class Core:
    """A running core, with the ends of its mailboxes that belong to others."""

    def __init__(self) -> None:
        self.handles, outputs, control = make_lanes(RequestMessage), make_ring(1 << 16), make_lanes(ToActor)
        self.lanes: LaneSender[RequestMessage] = LaneSender(self.handles.duplicate(), RequestMessage)
        self.requests = self.lanes.ordered
        self.outputs: Receiver[OutputMessage] = attach_receiver(outputs.duplicate(), OutputMessage)
        orders: LaneSender[ToActor] = LaneSender(control.duplicate(), ToActor)
        self.control = orders.ordered
        self.executor = PaperExecutor()
        scheduler = Scheduler(SchedulerConfig(), CacheConfig(), num_blocks=8, max_model_len=64)
        self.own: list[Any] = [
            LaneReceiver(self.handles.duplicate(), RequestMessage),
            attach_sender(outputs, OutputMessage),
            LaneReceiver(control, ToActor),
            self.lanes,
            orders,
        ]
        self.posted: list[ActorStatus] = []  # on its status board, so far
        status = StatusBlock(self.posted.append, actor="core0", kind="engine_core", supervisor=0, epoch=1)
        status.state("ready")
        ports = [OutputPort(self.own[1])]
        self.actor = EngineCore("core0", scheduler, self.executor, [RequestPort(self.own[0])], ports, self.own[2], status)

    async def __aenter__(self) -> "Core":
        self.task = asyncio.create_task(self.actor.run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        for end in (self.outputs, *self.own, self.handles):
            end.close()

    def add(self, request: int, tokens: int = 3, max_tokens: int = 2, siblings: Sequence[int] = ()) -> None:
        params = SamplingParams(seed=0, max_tokens=max_tokens)
        more = tuple(Sibling(number, number) for number in siblings)
        self.requests.send_nowait(AddRequest(request, "r", [5] * tokens, params, 0.0, siblings=more))

    async def idle(self) -> None:
        """Wait until the core, which has just been sent something, has done all that it can do."""
        self.executor.waited_for.clear()
        await self.executor.waited_for.wait()

    async def answer_to(self, request: int, received: Sequence[int] = ()) -> tuple[list[int], Any]:
        """All tokens of a request, after those already received, and how it ended."""
        tokens = list(received)
        while True:
            message = await self.outputs.receive()
            if isinstance(message, Failure):
                assert message.request == request
                return tokens, message.kind
            assert isinstance(message, StepOutputs)
            for delta in message.deltas:
                assert (delta.request, delta.position) == (request, len(tokens))
                assert (delta.scheduled >= delta.queued > 0) == bool(delta.tokens and not tokens)
                tokens += delta.tokens
                if delta.finish_reason is not None:
                    return tokens, delta.finish_reason

    async def describe(self) -> Any:
        self.requests.send_nowait(DescribeEngine(77))
        reply = await self.outputs.receive()
        assert isinstance(reply, UtilityReply)
        return reply.description
