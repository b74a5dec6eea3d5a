"""How the core reaches its workers: one small interface, and the one over mailboxes."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from ...ipc.attach import MailboxHandle, attach_receiver, attach_sender
from ...ipc.errors import WouldBlock
from ...ipc.mailbox import Receiver, Sender
from ...ipc.messages.plans import DescribeWorker, InitCache, PlanMessage, Reset, StepPlan, StopWorker
from ...ipc.messages.results import CallResult, ResultMessage, WorkerReady
from ...ipc.parking import Parkable, wait_any
from ..debug import watched

_RESULTS_AT_ONCE = 16


class Executor(Protocol):
    """A group of workers that run the same plans in the same order."""

    @property
    def ready(self) -> bool:
        """Whether they can run plans now."""

    @property
    def epoch(self) -> int:
        """The one that was begun last."""

    @property
    def num_workers(self) -> int:
        """How many they are."""

    def begin(self, epoch: int) -> None:
        """Begin an epoch: from now on nothing of an earlier one is answered, and nothing may be submitted until `ready`."""

    async def submit(self, plan: StepPlan) -> None:
        """Hand a plan to every worker, waiting for room in their mailbox."""

    def describe(self, call: int) -> None:
        """Ask every worker to describe itself, without waiting. Each answers by a CallResult of this number, if it lives."""

    def results(self) -> Iterator[ResultMessage]:
        """What the workers have answered so far, without waiting. Also takes them through the beginning of an epoch."""

    def ends(self) -> Sequence[Parkable]:
        """What to wait for to get more results."""

    async def stop(self) -> None:
        """Ask every worker to leave."""


class MailboxExecutor:
    """Workers in processes of their own: one broadcast ring to all, one ring back from each.

    An epoch begins with Reset, which each worker answers with WorkerReady; whatever comes before that is of no use any more.
    InitCache follows, with the number of blocks that all can hold, which stays the same from the first epoch on.
    """

    def __init__(self, plans: MailboxHandle, results: Sequence[MailboxHandle], epoch: int = 1, *, debug: bool = False) -> None:
        """Attach to the workers' mailboxes. `debug` warns when the one of plans is full."""
        self._plans: Sender[PlanMessage] = watched(attach_sender(plans, PlanMessage, epoch, checked=debug), on=debug)
        self._results: list[Receiver[ResultMessage]] = [
            attach_receiver(handle, ResultMessage, epoch=epoch) for handle in results
        ]
        self.ready = False
        self.epoch = epoch
        self._num_blocks = 0  # not known yet
        self._blocks: dict[int, int] = {}  # that each rank can hold which has begun the epoch
        self._allocated: set[int] = set()  # ranks that have their KV cache
        self._unsent: list[PlanMessage] = []  # found no room

    async def start(self) -> int:
        """Begin the first epoch, and wait until every worker has its weights and its KV cache; returns the number of blocks."""
        self.begin(self.epoch)
        while True:
            for _ in self.results():
                raise AssertionError("results before the first plan")
            if self.ready:
                return self._num_blocks
            await wait_any(self.ends())

    def begin(self, epoch: int) -> None:
        """See Executor."""
        self.ready, self.epoch = False, epoch
        self._blocks.clear()
        self._allocated.clear()
        self._unsent = [Reset(epoch)]
        self._send_more()

    def _send_more(self) -> None:
        try:
            while self._unsent:
                self._plans.send_nowait(self._unsent[0])
                del self._unsent[0]
        except WouldBlock:
            pass

    def _take_up(self, rank: int, message: ResultMessage) -> None:
        """A step in the beginning of an epoch; what belongs to an earlier one is passed over."""
        if isinstance(message, WorkerReady) and message.epoch == self.epoch:
            self._blocks[rank] = message.num_blocks
            if len(self._blocks) == len(self._results):
                self._num_blocks = self._num_blocks or min(self._blocks.values())
                self._unsent.append(InitCache(self._num_blocks))
                self._send_more()
        elif isinstance(message, CallResult) and message.call == 0 and rank in self._blocks:
            self._allocated.add(rank)
            self.ready = len(self._allocated) == len(self._results)

    async def submit(self, plan: StepPlan) -> None:
        """See Executor."""
        assert self.ready, f"step {plan.step} planned while the workers begin epoch {self.epoch}"
        await self._plans.send(plan)

    @property
    def num_workers(self) -> int:
        """See Executor."""
        return len(self._results)

    def describe(self, call: int) -> None:
        """See Executor."""
        self._unsent.append(DescribeWorker(call))
        self._send_more()

    def results(self) -> Iterator[ResultMessage]:
        """See Executor."""
        self._send_more()
        for rank, receiver in enumerate(self._results):
            try:
                while True:
                    for message in receiver.receive_many_nowait(_RESULTS_AT_ONCE):
                        if self.ready:
                            yield message
                        else:
                            self._take_up(rank, message)
            except WouldBlock:
                continue

    def ends(self) -> Sequence[Parkable]:
        """See Executor."""
        return [*self._results, self._plans] if self._unsent else self._results

    async def stop(self) -> None:
        """See Executor."""
        await self._plans.send(StopWorker())
