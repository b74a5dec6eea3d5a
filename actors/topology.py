"""Which actors an engine has and which mailbox joins which: made once, kept by the supervisor, inherited by children."""

import os
from collections.abc import Callable, Iterator

import msgspec

from ..ipc.attach import MailboxHandle
from ..ipc.board import BoardHandle, create_board
from ..ipc.codec import fingerprint_of
from ..ipc.lanes import Lanes
from ..ipc.local_mailbox import LocalHandle, create_local
from ..ipc.messages.config import EngineConfig
from ..ipc.messages.control import FromActor, ToActor
from ..ipc.messages.outputs import OutputMessage
from ..ipc.messages.plans import PlanMessage
from ..ipc.messages.requests import RequestMessage
from ..ipc.messages.results import ResultMessage
from ..ipc.messages.status import STATUS_BYTES, ActorStatus
from ..ipc.ring import create_ring
from ..model_runner.memory import available_memory
from .boot import Boot
from .errors import EngineStartError

CONTROL_RING_BYTES = 1 << 16
URGENT_RING_BYTES = 1 << 14

_UNIONS = {
    "requests": RequestMessage,
    "outputs": OutputMessage,
    "plans": PlanMessage,
    "results": ResultMessage,
    "to": ToActor,
    "from": FromActor,
}


class Topology:
    """The mailboxes and status boards of one engine, and the boot records that hand them out.

    Every frontend reaches every core by rings of their own, so that no ring has more than one writer.
    """

    def __init__(self, config: EngineConfig, num_frontends: int = 1) -> None:
        """Make them. Raises EngineStartError when there is not the memory for them, OSError when the system refuses."""
        self._config = config
        self._handles: list[MailboxHandle | BoardHandle] = []
        self._make: Callable[..., MailboxHandle] = create_local if config.runtime.single_process else create_ring
        try:
            self._create(range(num_frontends), range(config.parallel.data_parallel_size))
            self._check_memory()
        except BaseException:
            self.close()
            raise

    def _create(self, frontends: range, cores: range) -> None:
        """`requests` and `outputs` are indexed by frontend, then by core; `statuses`, those of the frontends, by frontend."""
        self.requests = [[self._lanes("requests", f"{a},{d}") for d in cores] for a in frontends]
        self.outputs = [[self._ring("outputs", f"{d},{a}") for d in cores] for a in frontends]
        self.statuses = [self._board(f"frontend{a}") for a in frontends]
        self._boots = [boot for core in cores for boot in self._group(core)]

    def _check_memory(self) -> None:
        """Refuse what could not be had later. The kernel gives a page when it is first touched; without one, it kills."""
        needed = sum(os.fstat(handle.memory).st_size for handle in self._handles if not isinstance(handle, LocalHandle))
        free = available_memory()
        if needed > free:
            raise EngineStartError(
                f"the mailboxes need {needed} bytes of memory with mailbox_bytes={self._config.runtime.mailbox_bytes}, "
                f"but only {free} bytes are free"
            )

    def _group(self, core: int) -> list[Boot]:
        """A core and its workers."""
        ranks = range(self._config.parallel.tensor_parallel_size)
        plans = self._ring("plans", str(core), readers=len(ranks))
        results = [self._ring("results", f"{core},{rank}") for rank in ranks]
        workers = [
            msgspec.structs.replace(
                self._child(f"worker{core}.{rank}", "worker", core), rank=rank, plans=plans, results=[results[rank]]
            )
            for rank in ranks
        ]
        requests, outputs = ([rings[core] for rings in side] for side in (self.requests, self.outputs))
        boot = self._child(f"core{core}", "engine_core", core)
        return [msgspec.structs.replace(boot, requests=requests, outputs=outputs, plans=plans, results=results), *workers]

    def _child(self, actor: str, kind: str, core: int) -> Boot:
        """A boot record with what every child gets."""
        return Boot(
            actor=actor,
            kind=kind,
            epoch=1,
            supervisor=os.getpid(),
            config=self._config,
            to_actor=self._lanes("to", actor, CONTROL_RING_BYTES),
            from_actor=self._ring("from", actor, CONTROL_RING_BYTES),
            status=self._board(actor),
            core=core,
        )

    def _ring(self, hop: str, which: str, capacity: int | None = None, readers: int = 1) -> MailboxHandle:
        capacity = capacity or self._config.runtime.mailbox_bytes
        handle = self._make(f"{hop}[{which}]", capacity, fingerprint_of(_UNIONS[hop]), readers)
        self._handles.append(handle)
        return handle

    def _lanes(self, hop: str, which: str, capacity: int | None = None) -> Lanes:
        union = fingerprint_of(_UNIONS[hop])
        urgent = self._make(f"{hop}[{which}].urgent", URGENT_RING_BYTES, union)
        self._handles.append(urgent)
        return Lanes(self._ring(hop, which, capacity), urgent)

    def _board(self, actor: str) -> BoardHandle:
        handle = create_board(f"status[{actor}]", STATUS_BYTES, ActorStatus)
        self._handles.append(handle)
        return handle

    def boots(self) -> list[Boot]:
        """One boot record a child process."""
        return self._boots

    def mark_gone(self, boot: Boot) -> None:
        """Tell the actors at the other end of a reaped process's mailboxes that nothing more comes, and nobody reads."""
        for mailbox, writer, slot in _sides(boot):
            mailbox.mark_gone(writer=writer, slot=slot)

    def vacate(self, boot: Boot) -> None:
        """Let a successor of a reaped process have its sides of all mailboxes. Nobody at their other ends learns of it here."""
        boot.to_actor.vacate(writer=False)
        boot.from_actor.vacate(writer=True)
        for mailbox, writer, slot in _sides(boot):
            mailbox.vacate(writer=writer, slot=slot)

    def close(self) -> None:
        """Close every descriptor. The memory goes when the last process that maps it has ended."""
        for handle in self._handles:
            handle.close()
        self._handles.clear()


def _sides(boot: Boot) -> Iterator[tuple[MailboxHandle | Lanes, bool, int]]:
    """The mailboxes between an actor and others than the supervisor: each, whether it writes there, and its slot if not."""
    core = boot.kind == "engine_core"
    yield from ((mailbox, False, 0) for mailbox in boot.requests)
    yield from ((mailbox, True, 0) for mailbox in boot.outputs)
    yield from ((mailbox, not core, 0) for mailbox in boot.results)
    if boot.plans is not None:
        yield boot.plans, core, boot.rank or 0
