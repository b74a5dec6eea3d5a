"""Encoding of one mailbox's union of messages."""

import typing
from collections.abc import Sequence
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec

from . import frame
from .errors import MessageTooLarge
from .messages.base import fingerprint
from .messages.payload import Payload

M = TypeVar("M")


@cache
def fingerprint_of(union: Any) -> int:
    """The fingerprint of a union, made once."""
    return fingerprint(union)


class Codec(Generic[M]):
    """Encoder and decoder of a closed union, for one end of a mailbox."""

    def __init__(self, union: Any) -> None:
        self.fingerprint = fingerprint_of(union)
        self._members = frozenset(typing.get_args(union) or (union,))
        self._encode = msgspec.msgpack.Encoder(enc_hook=self._put_aside).encode
        self._decoder = msgspec.msgpack.Decoder(union, dec_hook=self._take_up)
        self.decode = self._decoder.decode  # buffer -> M, without attachments; msgspec.DecodeError for anything else
        self.attachments: list[memoryview] = []  # of the message encoded last, until they are taken

    def encode(self, message: M) -> bytes:
        """Bytes of a message, with which its attachments must cross. Raises TypeError for one outside the union."""
        if type(message) not in self._members:
            names = ", ".join(sorted(member.__name__ for member in self._members))
            raise TypeError(f"{type(message).__name__} does not belong to this mailbox; it carries {names}")
        try:
            return self._encode(message)
        except BaseException:
            self.attachments = []
            raise

    def take_attachments(self) -> list[memoryview]:
        """The payloads of the message encoded last: the caller's buffers, which are not held any longer here."""
        attachments = self.attachments
        if attachments:
            self.attachments = []
        return attachments

    def _put_aside(self, value: Any) -> int:
        if not isinstance(value, Payload):
            raise TypeError(f"{type(value).__name__} cannot be encoded")
        if len(self.attachments) == frame.MAX_ATTACHMENTS:
            raise MessageTooLarge(f"a message with more than {frame.MAX_ATTACHMENTS} payloads")
        self.attachments.append(value.data)
        return len(self.attachments) - 1

    def decode_parts(self, parts: Sequence[memoryview]) -> M:
        """The message of a frame's parts; its payloads are views of them. Raises msgspec.DecodeError."""
        self.attachments = list(parts[1:])
        try:
            message: M = self._decoder.decode(parts[0])
        finally:
            self.attachments = []
        return message

    def _take_up(self, kind: type, value: Any) -> Payload:
        if kind is not Payload or not isinstance(value, int) or not 0 <= value < len(self.attachments):
            raise ValueError(f"no attachment {value}")
        return Payload(self.attachments[value])
