"""The worker actor: runs plans in the order they come and answers from the output rank."""

import gc
import time
from contextlib import suppress

from ...ipc.errors import EndOfStream, MailboxError, WouldBlock
from ...ipc.mailbox import Receiver, Sender
from ...ipc.messages.control import ActorReady, Drain, Reattach, Stop, ToActor
from ...ipc.messages.plans import DescribeWorker, InitCache, PlanMessage, Reset, SampleMask, StepPlan, StopWorker
from ...ipc.messages.results import CallResult, ResultMessage, WorkerReady
from ...ipc.parking import wait_any
from ...model_runner.runner import ModelRunner
from ..base import Actor, handles
from ..boot import Boot, Control, Main, describe_failure
from ..logs import logger
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
        control: Receiver[ToActor],
    ) -> None:
        self._runner = runner
        self._rank = rank
        self._plans = plans
        self._results = results
        self._control = control
        self._stopping = False

    async def run(self) -> None:
        """Serve until told to stop."""
        while not self._stopping:
            if not self._take_message(self._control) and not self._take_message(self._plans):
                await wait_any([self._plans, self._control])

    def _take_message(self, receiver: Receiver[PlanMessage] | Receiver[ToActor]) -> bool:
        try:
            message = receiver.receive_nowait()
        except WouldBlock:
            return False
        except EndOfStream:
            self._stopping = True
            return True
        self.dispatch(message)
        return True

    @handles(StepPlan)
    def _on_step(self, plan: StepPlan) -> None:
        result = self._runner.execute(plan)
        if self._rank == OUTPUT_RANK:
            self._results.send_nowait(result)

    @handles(InitCache)
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
        self._results.send_nowait(CallResult(0, self._rank))

    @handles(DescribeWorker)
    def _on_describe(self, message: DescribeWorker) -> None:
        self._results.send_nowait(CallResult(message.call, self._rank, self._runner.describe()))

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


def main_since(started: float) -> Main:
    """Body of the worker process, which began to import at `started` (CLOCK_MONOTONIC)."""

    async def main(boot: Boot, control: Control) -> None:
        imported = time.monotonic()
        rank, plans_ring = boot.rank, boot.plans
        assert rank is not None
        assert plans_ring is not None
        plans = Receiver[PlanMessage](plans_ring, PlanMessage, slot=rank)
        results = Sender[ResultMessage](boot.results[0], ResultMessage)
        try:
            with LoadingBar(boot.terminal) as bar:
                runner = ModelRunner(config=boot.config, rank=rank, on_progress=bar)
            num_blocks = runner.max_blocks()
            loaded = time.monotonic()
            worker = Worker(runner, rank, plans, results, control.receiver)
            results.send_nowait(WorkerReady(rank, num_blocks))
            gc.collect()
            gc.freeze()
            phases = {"import": imported - started, "load": loaded - imported}
            control.sender.send_nowait(ActorReady(boot.actor, num_blocks, seconds=phases))
            await worker.run()
        except Exception as error:
            with suppress(MailboxError):  # the supervisor is told as well, in any case
                results.send_nowait(describe_failure(boot.actor, error))
            raise

    return main
