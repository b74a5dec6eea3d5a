"""Which actors an engine has and which mailbox joins which: made once, kept by the supervisor, inherited by children."""

import os

import msgspec

from ..ipc.codec import codec_of
from ..ipc.messages.config import EngineConfig
from ..ipc.messages.control import FromActor, ToActor
from ..ipc.messages.outputs import OutputMessage
from ..ipc.messages.plans import PlanMessage
from ..ipc.messages.requests import RequestMessage
from ..ipc.messages.results import ResultMessage
from ..ipc.ring import RingHandle, create_ring, mark_gone
from .boot import Boot

DATA_RING_BYTES = 1 << 20  # touched only as far as traffic reaches; larger messages cross in fragments
CONTROL_RING_BYTES = 1 << 16

_UNIONS = {
    "requests": RequestMessage,
    "outputs": OutputMessage,
    "plans": PlanMessage,
    "results": ResultMessage,
    "to": ToActor,
    "from": FromActor,
}


class Topology:
    """The mailboxes of one engine, and the boot records that hand them out.

    Every frontend reaches every core by rings of their own, so that no ring has more than one writer.
    """

    def __init__(self, config: EngineConfig, num_frontends: int = 1) -> None:
        self._config = config
        self._handles: list[RingHandle] = []
        try:
            self._create(range(num_frontends), range(config.parallel.data_parallel_size))
        except OSError:
            self.close()
            raise

    def _create(self, frontends: range, cores: range) -> None:
        """`requests` and `outputs` are indexed by frontend, then by core."""
        self.requests = [[self._ring("requests", f"{a},{d}") for d in cores] for a in frontends]
        self.outputs = [[self._ring("outputs", f"{d},{a}") for d in cores] for a in frontends]
        self._boots = [boot for core in cores for boot in self._group(core)]

    def _group(self, core: int) -> list[Boot]:
        """A core and its workers."""
        ranks = range(self._config.parallel.tensor_parallel_size)
        plans = self._ring("plans", str(core), readers=len(ranks))
        results = [self._ring("results", f"{core},{rank}") for rank in ranks]
        workers = [
            msgspec.structs.replace(
                self._child(f"worker{core}.{rank}", "worker"), rank=rank, plans=plans, results=[results[rank]]
            )
            for rank in ranks
        ]
        requests, outputs = ([rings[core] for rings in side] for side in (self.requests, self.outputs))
        boot = self._child(f"core{core}", "engine_core")
        return [msgspec.structs.replace(boot, requests=requests, outputs=outputs, plans=plans, results=results), *workers]

    def _child(self, actor: str, kind: str) -> Boot:
        """A boot record with what every child gets."""
        return Boot(
            actor=actor,
            kind=kind,
            epoch=1,
            supervisor=os.getpid(),
            config=self._config,
            to_actor=self._ring("to", actor, CONTROL_RING_BYTES),
            from_actor=self._ring("from", actor, CONTROL_RING_BYTES),
        )

    def _ring(self, hop: str, which: str, capacity: int = DATA_RING_BYTES, readers: int = 1) -> RingHandle:
        handle = create_ring(f"{hop}[{which}]", capacity, codec_of(_UNIONS[hop]).fingerprint, readers)
        self._handles.append(handle)
        return handle

    def boots(self) -> list[Boot]:
        """One boot record a child process."""
        return self._boots

    def mark_gone(self, boot: Boot) -> None:
        """Tell the actors at the other end of a reaped process's mailboxes that nothing more comes, and nobody reads."""
        for handle in [*boot.outputs, *(boot.results if boot.kind == "worker" else [])]:
            mark_gone(handle, writer=True)
        for handle in [*boot.requests, *(boot.results if boot.kind == "engine_core" else [])]:
            mark_gone(handle, writer=False)
        if boot.plans is not None:
            mark_gone(boot.plans, writer=boot.kind == "engine_core", slot=boot.rank or 0)

    def close(self) -> None:
        """Close every descriptor. The memory goes when the last process that maps it has ended."""
        for handle in self._handles:
            handle.close()
        self._handles.clear()
