"""How a message and its payloads lie in the payload of one record.

Without payloads it is the encoded message alone. With n of them (n stands in the record's header):

    0   u64 x (n + 1)   lengths in bytes: the encoded message, then each payload
    ... the n + 1 parts, each from the next multiple of 16 on
"""

import struct
from collections.abc import Sequence

ALIGN = 16
MAX_ATTACHMENTS = 255
_LENGTH = struct.Struct("<Q")


class BadFrame(ValueError):
    """The lengths do not fit the record."""


def _aligned(length: int) -> int:
    return (length + ALIGN - 1) & -ALIGN


def join(parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """The pieces to lay one behind the other for a message and its payloads, none of them copied."""
    table = b"".join(_LENGTH.pack(len(part)) for part in parts)
    pieces: list[bytes | memoryview] = []
    for part in (table, *parts):
        pieces.append(part)
        if padding := _aligned(len(part)) - len(part):
            pieces.append(bytes(padding))
    return pieces


def split(frame: memoryview, attachments: int) -> list[memoryview]:
    """The parts of a frame, as views of it. Raises BadFrame."""
    count = attachments + 1
    start = _aligned(count * _LENGTH.size)
    if start > len(frame):
        raise BadFrame(f"{len(frame)} bytes cannot hold {attachments} attachments")
    parts = []
    for index in range(count):
        (length,) = _LENGTH.unpack_from(frame, index * _LENGTH.size)
        if length > len(frame) - start:
            raise BadFrame(f"part {index} of {length} bytes passes the end of the frame of {len(frame)} bytes")
        parts.append(frame[start : start + length])
        start = _aligned(start + length)
    return parts


def cut(pieces: Sequence[bytes | memoryview], size: int) -> list[list[bytes | memoryview]]:
    """The same bytes in order, in portions of `size` bytes, the last one shorter; none of them copied."""
    portions: list[list[bytes | memoryview]] = []
    room = 0
    for piece in pieces:
        view, start = memoryview(piece), 0
        while start < len(view):
            if not room:
                portions.append([])
                room = size
            portions[-1].append(view[start : start + room])
            taken = len(portions[-1][-1])
            start, room = start + taken, room - taken
    return portions
