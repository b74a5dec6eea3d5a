"""The other end of mailboxes, in a process of its own: `mailbox_peer.py MODE JOB`, a job being handles and options as JSON."""

import asyncio
import os
import signal
import sys

import msgspec
from stress_messages import StressMessage

from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.errors import EndOfStream
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.outputs import OutputMessage, UtilityReply
from ringpost.ipc.ring import RingHandle


class Job(msgspec.Struct):
    handles: list[RingHandle]
    options: dict[str, int] = {}


def receiver_of(handle: RingHandle, slot: int = 0) -> Receiver[OutputMessage]:
    return attach_receiver(handle, OutputMessage, slot)


def sender_of(handle: RingHandle) -> Sender[OutputMessage]:
    return attach_sender(handle, OutputMessage)


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
    receiver, sender = receiver_of(job.handles[0], job.options.get("slot", 0)), sender_of(job.handles[1])
    if "slot" in job.options:
        await sender.send(UtilityReply(-1))
    expected = 0
    try:
        while True:
            message = await receiver.receive()
            assert isinstance(message, UtilityReply)
            assert message.call == expected, (message.call, expected)
            expected += 1
            if "pause_ms" in job.options:
                await asyncio.sleep(job.options["pause_ms"] / 1000)
    except EndOfStream:
        await sender.send(UtilityReply(expected))


async def echo_blobs(job: Job) -> None:
    """Send back messages with bytes beside them, from another core."""
    os.sched_setaffinity(0, [job.options["core"]])
    receiver = attach_receiver(job.handles[0], StressMessage)
    sender = attach_sender(job.handles[1], StressMessage)
    try:
        while True:
            await sender.send(await receiver.receive())
    except EndOfStream:
        sender.close()


async def die(job: Job) -> None:
    """Send `count` messages, then end without a word."""
    sender = sender_of(job.handles[0])
    for number in range(job.options["count"]):
        await sender.send(UtilityReply(number))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    mode = {"echo": echo, "stream": stream, "drain": drain, "die": die, "echo_blobs": echo_blobs}[sys.argv[1]]
    asyncio.run(mode(msgspec.json.decode(sys.argv[2], type=Job)))
