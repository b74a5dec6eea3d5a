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
    """The mailboxes of one engine with one frontend, and the boot records that hand them out."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._handles: list[RingHandle] = []
        try:
            self._create()
        except OSError:
            self.close()
            raise

    def _create(self) -> None:
        world_size = self._config.parallel.tensor_parallel_size
        self.requests = self._ring("requests", "0,0")
        self.outputs = self._ring("outputs", "0,0")
        self._plans = self._ring("plans", "0", readers=world_size)
        self._results = [self._ring("results", f"0,{rank}") for rank in range(world_size)]
        self._boots = [self._core(), *(self._worker(rank) for rank in range(world_size))]

    def _core(self) -> Boot:
        return msgspec.structs.replace(
            self._child("core0", "engine_core"),
            requests=[self.requests],
            outputs=[self.outputs],
            plans=self._plans,
            results=self._results,
        )

    def _worker(self, rank: int) -> Boot:
        return msgspec.structs.replace(
            self._child(f"worker0.{rank}", "worker"),
            rank=rank,
            plans=self._plans,
            results=[self._results[rank]],
        )

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
