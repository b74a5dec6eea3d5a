"""The worker actor: runs plans in the order they come and answers from the output rank."""

import math
import time
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from ...ipc.attach import attach_receiver, attach_sender
from ...ipc.errors import EndOfStream, WouldBlock
from ...ipc.lanes import LaneReceiver
from ...ipc.mailbox import Receiver, Sender
from ...ipc.messages.control import ActorReady, Drain, Reattach, Stop, ToActor
from ...ipc.messages.descriptions import WorkerDescription
from ...ipc.messages.plans import DescribeWorker, InitCache, PlanMessage, Reset, SampleMask, StepPlan, StopWorker
from ...ipc.messages.results import CallResult, ResultMessage, StepResult, WorkerReady
from ...ipc.waiting import Adaptive
from ...model_runner.phases import PhaseClock
from ..base import Actor, handles
from ..boot import Boot, Control, freeze_memory
from ..debug import watch_handlers, watched
from ..logs import logger
from ..status import StatusBlock, message_name

OUTPUT_RANK = 0  # the one rank that answers a step


class Runner(Protocol):
    """What computes. See ModelRunner, which is one."""

    def max_blocks(self) -> int:
        """KV blocks that it can hold."""

    def init_cache(self, num_blocks: int) -> None:
        """Allocate them; a second call with the same number keeps what there is."""

    def reset(self) -> None:
        """Forget all rows."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a step."""

    def describe(self) -> WorkerDescription:
        """Numbers of this moment."""


class Worker(Actor, receives=(PlanMessage, ToActor)):
    """Owns the runner. Computing blocks the loop: a worker has nothing else to do meanwhile.

    When it is started, and when it learns that its core was restarted, it passes over what there is in `plans` until the Reset
    of that epoch: those plans are for rows that exist no more.
    """

    def __init__(
        self,
        runner: Runner,
        rank: int,
        plans: Receiver[PlanMessage],
        results: Sender[ResultMessage],
        control: LaneReceiver[ToActor],
        status: StatusBlock,
        epoch: int = 1,
    ) -> None:
        """`epoch` is the one that it was started for."""
        self._runner = runner
        self._rank = rank
        self._plans = plans
        self._results = results
        self._control = control
        self._status = status
        self._epoch = epoch  # the latest that it knows of
        self._begun = False  # that epoch, by its Reset
        self._num_blocks = runner.max_blocks()  # the same over all epochs
        self._waiting = Adaptive()
        self._clock = PhaseClock("idle", "receive", "send")  # around what the runner does
        self._answers: list[ResultMessage] = []  # to the message in hand
        self._stopping = False

    async def run(self) -> None:
        """Serve until told to stop."""
        while not self._stopping:
            if not await self._take_message(self._control) and not await self._take_message(self._plans):
                await self._waiting.wait([self._plans, self._control])
                self._clock.mark("idle")
        self._status.state("stopping")

    async def _take_message(self, receiver: Receiver[PlanMessage] | LaneReceiver[ToActor]) -> bool:
        try:
            message = receiver.receive_nowait()
        except WouldBlock:
            return False
        except EndOfStream:
            self._stopping = True
            return True
        if not self._begun and isinstance(message, StepPlan | InitCache | SampleMask | DescribeWorker):
            return True
        self._status.taking(message_name(message))
        self._clock.mark("receive")
        self.dispatch(message)
        self._clock.skip()
        while self._answers:
            await self._results.send(self._answers.pop(0))
        self._status.done(steps=int(isinstance(message, StepPlan)))
        self._clock.mark("send")
        return True

    @handles(StepPlan, slow_after=math.inf)
    def _on_step(self, plan: StepPlan) -> None:
        result = self._runner.execute(plan)
        if self._rank == OUTPUT_RANK:
            self._answers.append(result)

    @handles(InitCache, slow_after=math.inf)
    def _on_init_cache(self, message: InitCache) -> None:
        self._runner.init_cache(message.num_blocks)
        numbers = self._runner.describe()
        logger.info(
            "%d MB of weights and %d MB of KV cache (%d blocks) as %s, %d threads",
            numbers.weight_bytes >> 20,
            numbers.cache_bytes >> 20,
            message.num_blocks,
            numbers.dtype,
            numbers.num_threads,
        )
        self._answers.append(CallResult(0, self._rank))

    @handles(DescribeWorker)
    def _on_describe(self, message: DescribeWorker) -> None:
        description = self._runner.describe()
        phases = self._clock.seconds | description.phases
        self._answers.append(CallResult(message.call, self._rank, replace(description, phases=phases)))

    @handles(Reset)
    def _on_reset(self, reset: Reset) -> None:
        if reset.epoch < self._epoch:
            return
        self._epoch, self._begun = reset.epoch, True
        self._runner.reset()
        self._answers.append(WorkerReady(self._rank, self._num_blocks, reset.epoch))

    @handles(SampleMask)
    def _on_mask(self, message: SampleMask) -> None:
        raise AssertionError(f"step {message.step} did not ask for a mask")

    @handles(StopWorker, Stop)
    def _on_stop(self, _: StopWorker | Stop) -> None:
        self._stopping = True

    @handles(Reattach)
    def _on_reattach(self, message: Reattach) -> None:
        if message.epoch > self._epoch:
            self._epoch, self._begun = message.epoch, False

    @handles(Drain)
    def _on_drain(self, _: Drain) -> None:
        """A worker holds no request of its own."""


async def serve(boot: Boot, control: Control, make_runner: Callable[[int], Runner]) -> None:
    """Body of a worker process whose runner is made for its rank, with the mailboxes attached already."""
    imported = time.monotonic()
    rank, plans_ring, debug = boot.rank, boot.plans, boot.config.runtime.debug_actors
    assert rank is not None
    assert plans_ring is not None
    plans = attach_receiver(plans_ring, PlanMessage, rank, boot.epoch)
    results = watched(attach_sender(boot.results[0], ResultMessage, boot.epoch, checked=debug), on=debug)
    worker = Worker(make_runner(rank), rank, plans, results, control.receiver, control.status, boot.epoch)
    if debug:
        watch_handlers(worker, boot.actor)
    freeze_memory(boot.config.runtime)
    phases = control.phases | {"import": imported - control.began, "load": time.monotonic() - imported}
    control.status.state("ready")
    control.sender.send_nowait(ActorReady(boot.actor, seconds=phases))
    await worker.run()
