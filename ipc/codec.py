"""Encoding of one mailbox's union of messages."""

import typing
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from .messages.base import fingerprint

M = TypeVar("M")


class Codec(Generic[M]):
    """Encoder, decoder and fingerprint of a closed union. One per union and process; see `codec_of`."""

    def __init__(self, union: Any) -> None:
        self.fingerprint = fingerprint(union)
        self._members = frozenset(typing.get_args(union) or (union,))
        self._encode = msgspec.msgpack.Encoder().encode
        self.decode = msgspec.msgpack.Decoder(union).decode  # buffer -> M; msgspec.DecodeError for anything else

    def encode(self, message: M) -> bytes:
        """Bytes of a message. Raises TypeError for one outside the union."""
        if type(message) not in self._members:
            names = ", ".join(sorted(member.__name__ for member in self._members))
            raise TypeError(f"{type(message).__name__} does not belong to this mailbox; it carries {names}")
        return self._encode(message)


@cache
def codec_of(union: Any) -> Codec[Any]:
    """The codec of a union, made once."""
    return Codec(union)
