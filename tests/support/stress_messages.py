"""Messages for a mailbox under stress: message n is made of n alone, so either side can check it."""

import random
import zlib

from ringpost.ipc.messages.base import Message
from ringpost.ipc.messages.payload import Payload

CAPACITY = 1 << 14  # bytes of the ring
NOISE = random.Random(7).randbytes(1 << 17)


class Text(Message, frozen=True):
    number: int
    text: str


class Blob(Message, frozen=True):
    number: int
    checksum: int
    data: Payload


StressMessage = Text | Blob


def message_of(number: int) -> StressMessage:
    """Mostly small; now and then larger than the ring; a quarter with bytes beside the message."""
    choice = random.Random(number)
    size = choice.randrange(CAPACITY * 2) if number % 997 == 0 else choice.randrange(600) if number % 7 else 0
    if number % 4:
        return Text(number, "x" * size)
    data = bytearray(NOISE[number % 100 : number % 100 + size])
    return Blob(number, zlib.crc32(data), Payload(data))


def check(message: StressMessage) -> None:
    assert message == message_of(message.number), f"message {message.number} is not what was sent"
    if isinstance(message, Blob):
        assert zlib.crc32(message.data.data) == message.checksum, f"message {message.number} is torn"
