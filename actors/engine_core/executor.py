"""How the core reaches its workers: one small interface, and the one over mailboxes."""

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from ...ipc.attach import MailboxHandle, attach_receiver, attach_sender
from ...ipc.errors import WouldBlock
from ...ipc.mailbox import Receiver, Sender
from ...ipc.messages.failure import Failure
from ...ipc.messages.plans import InitCache, PlanMessage, StepPlan, StopWorker
from ...ipc.messages.results import CallResult, ResultMessage, WorkerReady
from ...ipc.parking import Parkable
from ..debug import watched
from ..errors import ActorFailed, EngineError

T = TypeVar("T", bound=ResultMessage)
_RESULTS_AT_ONCE = 16


class Executor(Protocol):
    """A group of workers that run the same plans in the same order."""

    async def start(self) -> int:
        """Wait until every worker has its weights and its KV cache; returns the number of blocks of the cache.

        Raises ActorFailed when a worker failed.
        """

    async def submit(self, plan: StepPlan) -> None:
        """Hand a plan to every worker, waiting for room in their mailbox."""

    def results(self) -> Iterator[ResultMessage]:
        """What the workers have answered so far, without waiting."""

    def ends(self) -> Sequence[Parkable]:
        """What to wait for to get more results."""

    async def stop(self) -> None:
        """Ask every worker to leave."""


class MailboxExecutor:
    """Workers in processes of their own: one broadcast ring to all, one ring back from each."""

    def __init__(self, plans: MailboxHandle, results: Sequence[MailboxHandle], *, debug: bool = False) -> None:
        """Attach to the workers' mailboxes. `debug` warns when the one of plans is full."""
        self._plans: Sender[PlanMessage] = watched(attach_sender(plans, PlanMessage, checked=debug), on=debug)
        self._results: list[Receiver[ResultMessage]] = [attach_receiver(handle, ResultMessage) for handle in results]

    async def start(self) -> int:
        """See Executor."""
        ready = [await self._expect(receiver, WorkerReady) for receiver in self._results]
        num_blocks = min(message.num_blocks for message in ready)
        await self._plans.send(InitCache(num_blocks))
        for receiver in self._results:
            await self._expect(receiver, CallResult)
        return num_blocks

    async def _expect(self, receiver: Receiver[ResultMessage], kind: type[T]) -> T:
        message = await receiver.receive()
        if isinstance(message, kind):
            return message
        if isinstance(message, Failure):
            raise ActorFailed(message)
        raise EngineError(f"waited for {kind.__name__} and got {message}")

    async def submit(self, plan: StepPlan) -> None:
        """See Executor."""
        await self._plans.send(plan)

    def results(self) -> Iterator[ResultMessage]:
        """See Executor."""
        for receiver in self._results:
            try:
                while True:
                    yield from receiver.receive_many_nowait(_RESULTS_AT_ONCE)
            except WouldBlock:
                continue

    def ends(self) -> Sequence[Parkable]:
        """See Executor."""
        return self._results

    async def stop(self) -> None:
        """See Executor."""
        await self._plans.send(StopWorker())
