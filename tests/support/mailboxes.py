"""Mailboxes for tests: both ends in this process, or one of them in another."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from ringpost.ipc.codec import codec_of
from ringpost.ipc.errors import WouldBlock
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.outputs import OutputMessage, StepOutputs, TokenDelta, UtilityReply
from ringpost.ipc.ring import RingHandle, RingReader, RingWriter, create_ring

HALF = 2048 - 16  # payload of a record of half a ring of 4096 bytes
PEER = Path(__file__).with_name("mailbox_peer.py")


def make_ring(capacity: int = 4096, readers: int = 1, union: Any = OutputMessage) -> RingHandle:
    return create_ring("test", capacity, codec_of(union).fingerprint, readers)


@contextmanager
def ring_for_two() -> Iterator[RingHandle]:
    """A ring of 4096 bytes with two reader slots and fingerprint 7."""
    ring = create_ring("requests[0,0]", 4096, 7, readers=2)
    yield ring
    ring.close()


@contextmanager
def joined(capacity: int = 4096, union: Any = OutputMessage) -> Iterator[tuple[Sender[Any], Receiver[Any]]]:
    """A sender and its receiver, closed at the end."""
    handle = make_ring(capacity, union=union)
    receiver: Receiver[Any] = Receiver(handle.duplicate(), union)
    sender: Sender[Any] = Sender(handle, union)
    try:
        yield sender, receiver
    finally:
        sender.close()
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
async def peer(mode: str, *handles: RingHandle, **options: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """`mailbox_peer.py MODE` in a process that inherits the rings; it must end by itself, with code 0."""
    job = msgspec.json.encode({"handles": handles, "options": options}).decode()
    fds = [fd for handle in handles for fd in handle.descriptors()]
    process = await asyncio.create_subprocess_exec(sys.executable, "-P", str(PEER), mode, job, pass_fds=fds)
    try:
        yield process
        code = await process.wait()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert code == 0, f"{mode} ended with code {code}"


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
