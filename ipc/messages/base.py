"""What every wire type shares: struct options by use, and the fingerprint of a union."""

import hashlib
from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False, forbid_unknown_fields=False):
    """Base of the members of a mailbox's union.

    Encoded as an array that starts with the class name, so a field may only ever be appended, with a default. Messages hold
    plain data and no cycles, which is why the garbage collector need not track them.
    """


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of what is only ever nested inside a message, hence without a tag. Append-only like a message."""


def fingerprint(union: Any) -> int:
    """64 bits that change with any name, type, order or default in a union: equal on both sides, or they must not talk."""
    return int.from_bytes(hashlib.sha256(repr(msgspec.inspect.type_info(union)).encode()).digest()[:8], "little")
