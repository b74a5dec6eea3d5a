"""Frames: what is joined comes apart again, however it is cut, and lengths that lie are refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringpost.ipc.frame import ALIGN, MAX_ATTACHMENTS, BadFrame, cut, join, split

PARTS = st.lists(st.binary(max_size=70), min_size=1, max_size=6)


def framed(parts: list[bytes]) -> bytes:
    return b"".join(join(parts))


@given(PARTS)
def test_what_was_joined_comes_apart(parts: list[bytes]) -> None:
    found = split(memoryview(framed(parts)), len(parts) - 1)
    assert [bytes(part) for part in found] == parts


@given(PARTS)
def test_each_part_begins_at_a_multiple_of_16(parts: list[bytes]) -> None:
    place = 0
    starts = []
    for piece in join(parts):
        if any(piece is part for part in parts):
            starts.append(place)
        place += len(piece)
    assert len(starts) >= len(parts)
    assert all(start % ALIGN == 0 for start in starts)


@given(PARTS)
def test_joining_copies_no_part(parts: list[bytes]) -> None:
    pieces = join(parts)
    assert all(any(piece is part for piece in pieces) for part in parts)


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 60))
def test_what_was_cut_is_the_same_bytes_in_even_portions(pieces: list[bytes], size: int) -> None:
    portions = [b"".join(portion) for portion in cut(pieces, size)]
    assert b"".join(portions) == b"".join(pieces)
    assert all(len(portion) == size for portion in portions[:-1])
    assert all(0 < len(portion) <= size for portion in portions)


@given(PARTS, st.integers(1, 60))
def test_a_frame_survives_being_cut(parts: list[bytes], size: int) -> None:
    joined = b"".join(b"".join(portion) for portion in cut(join(parts), size))
    assert [bytes(part) for part in split(memoryview(joined), len(parts) - 1)] == parts


def test_cutting_copies_nothing() -> None:
    buffer = bytearray(100)
    portions = cut([b"", memoryview(buffer)], 30)
    buffer[:] = b"x" * 100
    assert [bytes(piece) for portion in portions for piece in portion] == [b"x" * 30] * 3 + [b"x" * 10]


@given(PARTS, st.data())
def test_a_length_that_passes_the_end_is_refused(parts: list[bytes], data: st.DataObject) -> None:
    frame = bytearray(framed(parts))
    index = data.draw(st.integers(0, len(parts) - 1))
    length = data.draw(st.one_of(st.integers(len(frame) + 1, 2**64 - 1), st.just(2**63), st.just(2**64 - 1)))
    struct.pack_into("<Q", frame, 8 * index, length)
    with pytest.raises(BadFrame, match=rf"part {index} of {length} bytes passes the end of the frame of {len(frame)} bytes"):
        split(memoryview(frame), len(parts) - 1)


@given(st.binary(max_size=100), st.integers(0, MAX_ATTACHMENTS))
def test_any_bytes_are_parts_of_themselves_or_no_frame(data: bytes, attachments: int) -> None:
    try:
        parts = split(memoryview(data), attachments)
    except BadFrame:
        return
    assert len(parts) == attachments + 1
    assert all(bytes(part) in data for part in parts)


@pytest.mark.parametrize(("size", "attachments"), [(0, 0), (15, 1), (16, 2), (31, 3), (100, MAX_ATTACHMENTS)])
def test_a_frame_too_short_for_its_lengths_is_refused(size: int, attachments: int) -> None:
    with pytest.raises(BadFrame, match=f"{size} bytes cannot hold {attachments} attachments"):
        split(memoryview(bytes(size)), attachments)


def test_a_part_that_a_padding_pushes_past_the_end_is_refused() -> None:
    frame = bytearray(framed([b"x", b""]))
    struct.pack_into("<Q", frame, 8, 1)
    with pytest.raises(BadFrame, match="part 1 of 1 bytes"):
        split(memoryview(frame), 1)
