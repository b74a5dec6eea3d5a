"""The worker actor: runs plans in the order they come and answers from the output rank."""

import math
import time
from contextlib import suppress

from ...ipc.attach import attach_receiver, attach_sender
from ...ipc.errors import EndOfStream, MailboxError, WouldBlock
from ...ipc.lanes import LaneReceiver
from ...ipc.mailbox import Receiver, Sender
from ...ipc.messages.control import ActorReady, Drain, Reattach, Stop, ToActor
from ...ipc.messages.plans import DescribeWorker, InitCache, PlanMessage, Reset, SampleMask, StepPlan, StopWorker
from ...ipc.messages.results import CallResult, ResultMessage, WorkerReady
from ...ipc.waiting import Adaptive
from ...model_runner.runner import ModelRunner
from ..base import Actor, handles
from ..boot import Boot, Control, describe_failure, freeze_memory
from ..debug import watch_handlers, watched
from ..logs import logger
from ..status import StatusBlock, message_name
from .progress import LoadingBar

OUTPUT_RANK = 0  # the one rank that answers a step


class Worker(Actor, receives=(PlanMessage, ToActor)):
    """Owns the model runner. Computing blocks the loop: a worker has nothing else to do meanwhile."""

    def __init__(
        self,
        runner: ModelRunner,
        rank: int,
        plans: Receiver[PlanMessage],
        results: Sender[ResultMessage],
        control: LaneReceiver[ToActor],
        status: StatusBlock,
    ) -> None:
        self._runner = runner
        self._rank = rank
        self._plans = plans
        self._results = results
        self._control = control
        self._status = status
        self._waiting = Adaptive()
        self._answers: list[ResultMessage] = []  # to the message in hand
        self._stopping = False

    async def run(self) -> None:
        """Serve until told to stop."""
        while not self._stopping:
            if not await self._take_message(self._control) and not await self._take_message(self._plans):
                await self._waiting.wait([self._plans, self._control])
        self._status.state("stopping")

    async def _take_message(self, receiver: Receiver[PlanMessage] | LaneReceiver[ToActor]) -> bool:
        try:
            message = receiver.receive_nowait()
        except WouldBlock:
            return False
        except EndOfStream:
            self._stopping = True
            return True
        self._status.taking(message_name(message))
        self.dispatch(message)
        while self._answers:
            await self._results.send(self._answers.pop(0))
        self._status.done(steps=int(isinstance(message, StepPlan)))
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
        self._answers.append(CallResult(message.call, self._rank, self._runner.describe()))

    @handles(Reset)
    def _on_reset(self, _: Reset) -> None:
        self._runner.reset()

    @handles(SampleMask)
    def _on_mask(self, message: SampleMask) -> None:
        raise AssertionError(f"step {message.step} did not ask for a mask")

    @handles(StopWorker, Stop)
    def _on_stop(self, _: StopWorker | Stop) -> None:
        self._stopping = True

    @handles(Drain, Reattach)
    def _on_supervision(self, _: Drain | Reattach) -> None:
        """A worker holds no request of its own, and its mailboxes stay the same whoever is at the other end."""


async def main(boot: Boot, control: Control) -> None:
    """Body of the worker process."""
    imported = time.monotonic()
    rank, plans_ring = boot.rank, boot.plans
    assert rank is not None
    assert plans_ring is not None
    plans = attach_receiver(plans_ring, PlanMessage, slot=rank)
    debug = boot.config.runtime.debug_actors
    results = watched(attach_sender(boot.results[0], ResultMessage, checked=debug), on=debug)
    try:
        with LoadingBar(boot.terminal) as bar:
            runner = ModelRunner(config=boot.config, rank=rank, on_progress=bar)
        num_blocks = runner.max_blocks()
        loaded = time.monotonic()
        worker = Worker(runner, rank, plans, results, control.receiver, control.status)
        if debug:
            watch_handlers(worker, boot.actor)
        results.send_nowait(WorkerReady(rank, num_blocks))
        freeze_memory(boot.config.runtime)
        phases = {"import": imported - control.began, "load": loaded - imported}
        control.status.state("ready")
        control.sender.send_nowait(ActorReady(boot.actor, num_blocks, seconds=phases))
        await worker.run()
    except Exception as error:
        with suppress(MailboxError):  # the supervisor is told as well, in any case
            results.send_nowait(describe_failure(boot.actor, error))
        raise
