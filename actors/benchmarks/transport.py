"""What carries the messages of a benchmark from one process, the hub, to others, the peers, and back.

A transport is a module with a class `Link` and a line in TRANSPORTS.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

import msgspec

from .messages import BenchmarkMessage


class Setup(msgspec.Struct, frozen=True):
    """What a link is for."""

    peers: int
    spin: bool  # whoever waits polls instead of sleeping
    sleep: bool  # whoever waits sleeps, also where polling for a moment would pay
    large: bool  # messages have a payload
    folder: str  # for files, if it needs any


class End(Protocol):
    """One process's end. Used from one task of a uvloop, which a transport without asyncio blocks."""

    async def send(self, messages: Sequence[BenchmarkMessage]) -> None:
        """Send them in order: the hub each to every peer, a peer to the hub."""

    async def receive(self) -> list[BenchmarkMessage]:
        """Wait for a message; returns it, and what else is there if the transport can tell."""

    def close(self) -> None:
        """Release everything, once all that was sent is on its way."""


class Link(Protocol):
    """Joins the hub with its peers. Made in the process that they are forked from; nothing runs in it before the fork."""

    def __init__(self, setup: Setup) -> None: ...

    async def hub(self) -> End:
        """The hub's end, in its own process, when every peer can receive."""

    async def peer(self, number: int) -> End:
        """The end of a peer, in its own process."""


class Transport(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a transport without loading it."""

    label: str
    module: str
    about: str  # a line for the legend
    can_spin: bool = True
    in_flight: int = 4_000_000  # bytes that may be under way before both sides could block each other
    needs: str | None = None  # a module of the extra `bench`
    package: str = ""  # where it comes from


TRANSPORTS = {
    "ringpost": Transport(label="Ringpost", module="ringpost_transport", about="mailboxes; payloads cross beside the message"),
    "zmq": Transport(
        label="zmq.asyncio",
        module="zmq_transport",
        about="PAIR, for broadcasts XPUB/SUB, over ipc://; payloads are frames of their own, not copied by Python",
        needs="zmq",
        package="pyzmq",
    ),
    "pipe": Transport(
        label="Pipe",
        module="pipe_transport",
        about="multiprocessing.Pipe, send_bytes and recv_bytes, no event loop; at most its buffer in flight",
        in_flight=50_000,
    ),
    "queue": Transport(
        label="Queue",
        module="queue_transport",
        about="multiprocessing.Queue, which pickles the encoded bytes and sends from a thread; no event loop",
        can_spin=False,  # the spinning thread would keep the sending one from running
    ),
}


def missing(name: str) -> str | None:
    """Why a transport cannot be measured here, and what to do; None if it can."""
    transport = TRANSPORTS[name]
    if transport.needs is None or find_spec(transport.needs) is not None:
        return None
    return f'{transport.label} is left out: {transport.package} is not installed; pip install "ringpost[bench]"'


def make_link(name: str, setup: Setup) -> Link:
    """The link of a transport, whose module is loaded only now."""
    link = import_module(f".{TRANSPORTS[name].module}", __package__).Link(setup)
    return cast("Link", link)
