"""Boards: the latest value wins, is always whole, and stays readable whatever becomes of its writer."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringpost.ipc.board import BoardHandle, BoardReader, BoardWriter, create_board
from ringpost.ipc.errors import Broken, Closed, MessageTooLarge, SchemaMismatch


class Value(msgspec.Struct, frozen=True):
    number: int
    text: str


class Other(msgspec.Struct, frozen=True):
    number: int


@pytest.fixture
def board(no_leaks: None) -> Iterator[BoardHandle]:
    handle = create_board("test", 1000, Value)
    yield handle
    handle.close()


def test_the_latest_value_wins(board: BoardHandle) -> None:
    writer, reader = BoardWriter(board, Value), BoardReader(board, Value)
    assert reader.read() is None
    for number in range(5):
        writer.post(Value(number, "x" * number))
        assert reader.read() == Value(number, "x" * number)
    assert reader.read() == Value(4, "xxxx")
    late = BoardReader(board, Value)
    assert late.read() == Value(4, "xxxx")
    for end in (writer, reader, late):
        end.close()
        end.close()


def test_a_value_without_room_changes_nothing(board: BoardHandle) -> None:
    writer, reader = BoardWriter(board, Value), BoardReader(board, Value)
    writer.post(Value(1, ""))
    with pytest.raises(MessageTooLarge, match=r"board test: a value of \d+ bytes; it holds 1020"):
        writer.post(Value(2, "x" * 1021))
    assert reader.read() == Value(1, "")
    writer.close()
    reader.close()


def test_a_closed_end_says_so(board: BoardHandle) -> None:
    writer, reader = BoardWriter(board, Value), BoardReader(board, Value)
    writer.close()
    reader.close()
    with pytest.raises(Closed):
        writer.post(Value(1, ""))
    with pytest.raises(Closed):
        reader.read()


def test_another_type_of_value_is_refused(board: BoardHandle) -> None:
    with pytest.raises(SchemaMismatch, match="made for values 0x"):
        BoardReader(board, Other)
    with pytest.raises(SchemaMismatch, match="made for values 0x"):
        BoardWriter(board, Other)


def test_memory_that_is_no_board_is_refused(board: BoardHandle) -> None:
    os.pwrite(board.memory, bytes(8), 0)
    with pytest.raises(SchemaMismatch, match="not a board"):
        BoardReader(board, Value)


@given(garbage=st.binary(min_size=1, max_size=100))
def test_a_corrupt_value_is_an_error_and_no_crash(garbage: bytes) -> None:
    handle = create_board("test", 200, Value)
    writer, reader = BoardWriter(handle, Value), BoardReader(handle, Value)
    writer.post(Value(1, ""))
    os.pwrite(handle.memory, garbage, 128 + 256)
    with suppress(Broken):
        assert isinstance(reader.read(), Value)
    os.pwrite(handle.memory, b"\xc1", 128 + 256 + 4)  # a byte that msgpack never uses
    with pytest.raises(Broken, match="board test: its value does not decode"):
        reader.read()
    writer.close()
    reader.close()
    handle.close()


def test_the_copy_that_is_being_written_is_never_seen(board: BoardHandle) -> None:
    writer, reader = BoardWriter(board, Value), BoardReader(board, Value)
    writer.post(Value(1, "whole"))
    # What a writer leaves that dies in the middle of its second posting.
    os.pwrite(board.memory, (2).to_bytes(8, "little"), 64)
    os.pwrite(board.memory, b"\xff" * 64, 128)
    assert reader.read() == Value(1, "whole")
    writer.close()
    successor = BoardWriter(board, Value)
    successor.post(Value(2, "again"))
    assert reader.read() == Value(2, "again")
    successor.close()
    reader.close()


def post_for_ever(handle: BoardHandle) -> None:
    writer, number = BoardWriter(handle, Value), 0
    while True:
        number += 1
        writer.post(Value(number, chr(97 + number % 26) * (number % 900)))


def test_values_are_whole_while_another_process_posts_and_after_it_was_killed(board: BoardHandle) -> None:
    process = multiprocessing.get_context("fork").Process(target=post_for_ever, args=(board,))
    process.start()
    reader = BoardReader(board, Value)
    numbers: list[int] = []
    while len(numbers) < 20_000 or len(set(numbers[::100])) < 50:  # both processes have to have had their turns
        value = reader.read()
        if value is not None:
            assert value.text == chr(97 + value.number % 26) * (value.number % 900)
            numbers.append(value.number)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    last = reader.read()
    assert last is not None
    assert last.number >= numbers[-1]
    assert numbers == sorted(numbers)
    reader.close()
    process.close()
