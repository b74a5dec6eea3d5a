"""The other end of mailboxes, in a process of its own: `mailbox_peer.py MODE JOB`, a job being handles and options as JSON."""

import asyncio
import os
import signal
import sys

import msgspec

from ringpost.ipc.errors import EndOfStream
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.outputs import OutputMessage, UtilityReply
from ringpost.ipc.ring import RingHandle


class Job(msgspec.Struct):
    handles: list[RingHandle]
    options: dict[str, int] = {}


def receiver_of(handle: RingHandle) -> Receiver[OutputMessage]:
    return Receiver(handle, OutputMessage)


def sender_of(handle: RingHandle) -> Sender[OutputMessage]:
    return Sender(handle, OutputMessage)


async def echo(job: Job) -> None:
    """Send back everything that comes, until the stream ends."""
    receiver, sender = receiver_of(job.handles[0]), sender_of(job.handles[1])
    try:
        while True:
            await sender.send(await receiver.receive())
    except EndOfStream:
        sender.close()


async def stream(job: Job) -> None:
    """Send `count` numbered messages, then close."""
    sender = sender_of(job.handles[0])
    for number in range(job.options["count"]):
        await sender.send(UtilityReply(number, message="x" * (number % 97)))
    sender.close()


async def drain(job: Job) -> None:
    """Receive numbered messages until the stream ends, then report how many came in order."""
    receiver, sender = receiver_of(job.handles[0]), sender_of(job.handles[1])
    expected = 0
    try:
        while True:
            message = await receiver.receive()
            assert isinstance(message, UtilityReply)
            assert message.call == expected, (message.call, expected)
            expected += 1
    except EndOfStream:
        await sender.send(UtilityReply(expected))


async def die(job: Job) -> None:
    """Send `count` messages, then end without a word."""
    sender = sender_of(job.handles[0])
    for number in range(job.options["count"]):
        await sender.send(UtilityReply(number))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    mode = {"echo": echo, "stream": stream, "drain": drain, "die": die}[sys.argv[1]]
    asyncio.run(mode(msgspec.json.decode(sys.argv[2], type=Job)))
