"""What the benchmarks send: a union of their own, and its codec for transports that carry plain bytes."""

from typing import Any, TypeAlias

import msgspec

from ...ipc.messages.base import Message
from ...ipc.messages.payload import Payload


class Prompt(Message, frozen=True):
    """Text, which costs the codec little, so that the transports show."""

    request: int
    text: str


class Image(Message, frozen=True):
    """Large binary content."""

    request: int
    data: Payload


class Ready(Message, frozen=True):
    """A peer can receive."""

    peer: int


class Received(Message, frozen=True):
    """How many messages of a broadcast a peer has received so far."""

    peer: int
    count: int


class Stop(Message, frozen=True):
    """The last message to a peer."""


BenchmarkMessage: TypeAlias = Prompt | Image | Ready | Received | Stop

SIZES = {"20B": 20, "600B": 600, "5KB": 5_000, "1MB": 1_000_000}  # of the encoded message, of the payload alone from LARGE on
LARGE = 100_000  # bytes from which on a message is binary content
_REQUEST = 2**40  # 9 bytes when encoded


def sample(size: int) -> BenchmarkMessage:
    """The message of a size in bytes."""
    if size >= LARGE:
        return Image(_REQUEST, Payload(bytes(range(256)) * (size // 256) + bytes(size % 256)))
    header = len(encode(Prompt(_REQUEST, "x" * size))) - size
    return Prompt(_REQUEST, "x" * (size - header))


def _content(value: Any) -> memoryview:
    if not isinstance(value, Payload):
        raise TypeError(f"{type(value).__name__} cannot be encoded")
    return value.data


def _payload(kind: type, value: Any) -> Payload:
    if kind is not Payload:
        raise TypeError(f"{kind.__name__} cannot be decoded")
    return Payload(value)


encode = msgspec.msgpack.Encoder(enc_hook=_content).encode  # message -> bytes, its payload inside
decode = msgspec.msgpack.Decoder(BenchmarkMessage, dec_hook=_payload).decode
