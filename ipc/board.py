"""A board: one writer posts a value, any number of readers see the latest; neither waits for the other.

    0    magic      version, and "this is a board"
    8    capacity   bytes of one copy, a multiple of 64
    16   fingerprint of the type of value
    64   BEGUN      number of the posting that was begun last    written by the writer only
    72   DONE       number of the posting that is complete       written by the writer only
    128  copy 0, then copy 1: u32 length, then the value

Posting n goes into copy n % 2, between the stores of BEGUN and DONE, so the copy that DONE names is whole whenever the
writer dies. A reader takes that copy and then looks at BEGUN: only a posting two later would have touched it.
"""

import os
import struct
from typing import Generic, TypeVar

import msgspec

from .atomics import fence, load, publish, words_of
from .errors import Broken, Closed, MessageTooLarge, SchemaMismatch
from .messages.base import fingerprint
from .segment import create_segment, map_segment

V = TypeVar("V", bound=msgspec.Struct)

MAGIC = 0x0001_6472_616F_6272  # "rboard", version 1
_LENGTH = struct.Struct("<I")
_HEADER, _LINE = 128, 64
_W_MAGIC, _W_CAPACITY, _W_FINGERPRINT, _W_BEGUN, _W_DONE = 0, 1, 2, 8, 9
_TRIES = 1000  # a reader meets a writer that posts twice while it copies; so often in a row is no coincidence


class BoardHandle(msgspec.Struct, frozen=True):
    """Descriptor of a board's memory, and the name used in errors and logs."""

    name: str
    memory: int

    def close(self) -> None:
        """Close the descriptor. Mappings stay."""
        os.close(self.memory)


def create_board(name: str, capacity: int, kind: type[msgspec.Struct]) -> BoardHandle:
    """Make a board on which nothing is posted yet, for encoded values of at most `capacity` bytes."""
    size = -(-(_LENGTH.size + capacity) // _LINE) * _LINE
    handle = BoardHandle(name, create_segment(name, _HEADER + 2 * size))
    try:
        memory = map_segment(handle.memory)
    except OSError:
        handle.close()
        raise
    words = words_of(memory, _HEADER)
    words[_W_CAPACITY], words[_W_FINGERPRINT] = size, fingerprint(kind)
    publish(words, _W_MAGIC, MAGIC)
    words.release()
    memory.close()
    return handle


class _End(Generic[V]):
    """What both ends share: the mapping, checked against the type of value."""

    def __init__(self, handle: BoardHandle, kind: type[V], *, writable: bool) -> None:
        self.name = handle.name
        self._memory = map_segment(handle.memory, writable=writable)
        self._words = words_of(self._memory, _HEADER)
        wrong = ""
        if load(self._words, _W_MAGIC) != MAGIC:
            wrong = "the memory is not a board of this version"
        elif self._words[_W_FINGERPRINT] != fingerprint(kind):
            wrong = f"made for values {self._words[_W_FINGERPRINT]:#x}, this side knows {fingerprint(kind):#x}"
        if wrong:
            self._words.release()
            self._memory.close()
            raise SchemaMismatch(f"board {self.name}: {wrong}")
        self._size: int = self._words[_W_CAPACITY]
        self.closed = False

    def _start(self, number: int) -> int:
        """Where the copy of a posting starts."""
        return _HEADER + (number & 1) * self._size

    def close(self) -> None:
        """Give the mapping back. A second call does nothing."""
        if not self.closed:
            self.closed = True
            self._words.release()
            self._memory.close()


class BoardWriter(_End[V], Generic[V]):
    """The end that posts. One at a time; a successor of one that died goes on where it was."""

    def __init__(self, handle: BoardHandle, kind: type[V]) -> None:
        super().__init__(handle, kind, writable=True)
        self._encode = msgspec.msgpack.Encoder().encode
        self._number = load(self._words, _W_DONE)

    def post(self, value: V) -> None:
        """Replace the value. Raises MessageTooLarge for one that has no room, or Closed; then nothing has changed."""
        if self.closed:
            raise Closed(f"board {self.name}: its writer was closed")
        payload = self._encode(value)
        if _LENGTH.size + len(payload) > self._size:
            raise MessageTooLarge(f"board {self.name}: a value of {len(payload)} bytes; it holds {self._size - _LENGTH.size}")
        self._number += 1
        self._words[_W_BEGUN] = self._number
        fence()  # BEGUN before the copy: pairs with the fence in BoardReader.read
        start = self._start(self._number)
        _LENGTH.pack_into(self._memory, start, len(payload))
        self._memory[start + _LENGTH.size : start + _LENGTH.size + len(payload)] = payload
        publish(self._words, _W_DONE, self._number)


class BoardReader(_End[V], Generic[V]):
    """An end that looks. Costs the writer nothing; needs the memory for reading only."""

    def __init__(self, handle: BoardHandle, kind: type[V]) -> None:
        super().__init__(handle, kind, writable=False)
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def read(self) -> V | None:
        """The latest value; None when nothing has been posted. Raises Broken for a value that does not decode, Closed."""
        if self.closed:
            raise Closed(f"board {self.name}: its reader was closed")
        payload = self._copy()
        if payload is None:
            return None
        try:
            return self._decode(payload)
        except msgspec.DecodeError as error:
            raise Broken(f"board {self.name}: its value does not decode: {error}") from None

    def _copy(self) -> bytes | None:
        for _ in range(_TRIES):
            number = load(self._words, _W_DONE)
            if not number:
                return None
            start = self._start(number)
            (length,) = _LENGTH.unpack_from(self._memory, start)
            payload = self._memory[start + _LENGTH.size : start + _LENGTH.size + min(length, self._size)]
            fence()  # the copy before BEGUN: pairs with the fence in BoardWriter.post
            if load(self._words, _W_BEGUN) < number + 2:
                return payload
        raise Broken(f"board {self.name}: {_TRIES} values in a row changed while they were read")
