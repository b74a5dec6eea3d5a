"""Mailboxes for tests: both ends in this process, or one of them in another.

The conformance suite holds every kind in MAKERS to the contract of `ipc/mailbox.py`.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from ringpost.ipc.attach import MailboxHandle, attach_receiver, attach_sender
from ringpost.ipc.codec import fingerprint_of
from ringpost.ipc.errors import WouldBlock
from ringpost.ipc.lanes import LaneReceiver, Lanes, LaneSender
from ringpost.ipc.local_mailbox import create_local
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.base import Message
from ringpost.ipc.messages.outputs import OutputMessage, StepOutputs, TokenDelta, UtilityReply
from ringpost.ipc.messages.payload import Payload
from ringpost.ipc.ring import RingHandle, create_ring
from ringpost.ipc.ring_reader import RingReader
from ringpost.ipc.ring_writer import RingWriter

HALF = 2048 - 16  # payload of a record of half a ring of 4096 bytes
PEER = Path(__file__).with_name("mailbox_peer.py")


class Maker(Protocol):
    """Makes an empty mailbox. `capacity` is in bytes; `fingerprint` that of the messages."""

    def __call__(self, name: str, capacity: int, fingerprint: int, readers: int = 1) -> MailboxHandle: ...


MAKERS: dict[str, Maker] = {"shared": create_ring, "local": create_local}
every_kind = pytest.mark.parametrize("kind", MAKERS)


class Parcel(Message, frozen=True):
    """A message with binary content."""

    number: int
    contents: list[Payload] = []


def make_mailbox(kind: str, capacity: int = 4096, readers: int = 1, union: Any = OutputMessage) -> MailboxHandle:
    return MAKERS[kind]("test", capacity, fingerprint_of(union), readers)


def make_ring(capacity: int = 4096, readers: int = 1, union: Any = OutputMessage) -> RingHandle:
    return create_ring("test", capacity, fingerprint_of(union), readers)


def make_lanes(union: Any, capacity: int = 4096) -> Lanes:
    return Lanes(make_ring(capacity, union=union), make_ring(union=union))


@contextmanager
def lane_ends(lanes: Lanes, union: Any) -> Iterator[tuple[LaneSender[Any], LaneReceiver[Any]]]:
    """Both ends of lanes that stay the caller's, closed at the end."""
    sender: LaneSender[Any] = LaneSender(lanes.duplicate(), union)
    receiver: LaneReceiver[Any] = LaneReceiver(lanes.duplicate(), union)
    try:
        yield sender, receiver
    finally:
        sender.close()
        receiver.close()


@contextmanager
def ring_for_two() -> Iterator[RingHandle]:
    """A ring of 4096 bytes with two reader slots and fingerprint 7."""
    ring = create_ring("requests[0,0]", 4096, 7, readers=2)
    yield ring
    ring.close()


@contextmanager
def joined(
    capacity: int = 4096, union: Any = OutputMessage, kind: str = "shared"
) -> Iterator[tuple[Sender[Any], Receiver[Any]]]:
    """A sender and its receiver, closed at the end."""
    handle = make_mailbox(kind, capacity, union=union)
    receiver: Receiver[Any] = attach_receiver(handle.duplicate(), union)
    sender: Sender[Any] = attach_sender(handle, union)
    try:
        yield sender, receiver
    finally:
        sender.close()
        receiver.close()


@contextmanager
def broadcast(kind: str, slots: int, union: Any = OutputMessage) -> Iterator[tuple[Sender[Any], list[Receiver[Any]]]]:
    """A sender and a receiver in each slot, closed at the end."""
    handle = make_mailbox(kind, readers=slots, union=union)
    receivers: list[Receiver[Any]] = [attach_receiver(handle.duplicate(), union, slot) for slot in range(slots)]
    sender: Sender[Any] = attach_sender(handle, union)
    try:
        yield sender, receivers
    finally:
        sender.close()
        for receiver in receivers:
            receiver.close()


def fill(sender: Sender[Any]) -> None:
    """Leave room for no message at all."""
    for size in (500, 0):
        with suppress(WouldBlock):
            while True:
                sender.send_nowait(note(0, size))


async def parked(*tasks: asyncio.Task[Any]) -> None:
    """Let the tasks run until each waits for something that only the test can bring about."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)


def note(number: int, size: int = 0) -> UtilityReply:
    """A message that is easy to tell apart, with `size` bytes of text."""
    return UtilityReply(number, message="x" * size)


def big(number: int, tokens: int = 3000) -> StepOutputs:
    """A message of more than `tokens` bytes, so that it crosses a small ring in fragments."""
    return StepOutputs(number, [TokenDelta(number, 0, list(range(tokens)))])


@asynccontextmanager
async def peer(
    mode: str, *handles: RingHandle, exit_code: int = 0, **options: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`mailbox_peer.py MODE` in a process that inherits the rings; it must end with this code, by itself or killed."""
    job = msgspec.json.encode({"handles": handles, "options": options}).decode()
    fds = [fd for handle in handles for fd in handle.descriptors()]
    environment = os.environ | {"PYTHONPATH": str(PEER.parent)}
    process = await asyncio.create_subprocess_exec(sys.executable, "-P", str(PEER), mode, job, pass_fds=fds, env=environment)
    try:
        yield process
        code = await process.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    assert code == exit_code, f"{mode} ended with code {code}"


def receive_all(receiver: Receiver[Any]) -> list[Any]:
    """What is waiting."""
    received = []
    with suppress(WouldBlock):
        while True:
            received.append(receiver.receive_nowait())
    return received


def write_all(writer: RingWriter, *sizes: int) -> None:
    for size in sizes:
        assert writer.try_write(bytes([size % 251]) * size), size


def read_all(reader: RingReader) -> list[int]:
    """Sizes of what is waiting."""
    sizes = []
    while (view := reader.peek()) is not None:
        assert bytes(view) == bytes([len(view) % 251]) * len(view)
        sizes.append(len(view))
        reader.advance()
    return sizes
