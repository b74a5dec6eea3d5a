"""The last messages that a ring still holds, as an onlooker finds them; also those that their readers have released.

A record stays where it is until it is overwritten. Records are chained forward only, so the chain is found from its end: HEAD
is a start, and so is every place with a plausible header whose record ends at a start with the number due after its own.
"""

import mmap
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec

from . import frame
from .atomics import fence, words_of
from .codec import Codec
from .errors import SchemaMismatch
from .layout import (
    ALIGN,
    ATTACHMENTS_SHIFT,
    CHECKED,
    CHECKSUM,
    DATA,
    DISCARD,
    FIRST_FRAGMENT,
    KIND_MASK,
    LAST_FRAGMENT,
    PAD,
    RECORD,
    RECORD_BYTES,
    SEQUENCE_MASK,
    W_FINGERPRINT,
    data_offset,
    record_size,
)
from .ring_view import RingReading, RingView
from .segment import map_segment

SCAN_BYTES = 1 << 18  # before HEAD
MAX_MESSAGES = 20
_KIND_BITS = KIND_MASK | CHECKED | frame.MAX_ATTACHMENTS << ATTACHMENTS_SHIFT  # the only ones a kind word has

Header = tuple[int, int, int, int]  # as layout.RECORD has it


class PastMessage(msgspec.Struct, frozen=True):
    """A message that a ring still holds, or what is known of it."""

    position: int  # where it starts, in bytes ever published
    epoch: int
    sequence: int  # of its last record
    size: int  # bytes of its payload, as far as they are there
    unread_by: list[int]  # reader slots that have still to take it; one that left in good order takes nothing
    message: Any = None
    problem: str = ""  # why there is no message; tells nothing of what is in it


class _Record(msgspec.Struct, frozen=True):
    index: int  # of its header, in units of ALIGN bytes
    after: int  # that of the next one
    header: Header

    @property
    def kind(self) -> int:
        return self.header[1] & KIND_MASK


class RingHistory(msgspec.Struct, frozen=True):
    """A copy of a ring's last bytes. To find the messages in it takes milliseconds and can be done in a thread."""

    reading: RingReading
    fingerprint: int  # of the union of messages that the ring carries
    data: bytes  # what was published last, up to HEAD

    def messages(self, union: Any, limit: int = MAX_MESSAGES) -> list[PastMessage]:
        """The last messages that are still there, oldest first. Whatever the bytes are, nothing is raised."""
        codec: Codec[Any] = Codec(union)
        return [self._message(records, codec) for records in list(self._messages())[-limit:]]

    def _messages(self) -> Iterator[list[_Record]]:
        """The records of each message, which may lack the first ones, or the last where the writer has not finished it."""
        records: list[_Record] = []
        for record in self._records():
            if record.kind in (DATA, FIRST_FRAGMENT, DISCARD):
                if records and record.kind != DISCARD:  # its writer died
                    yield records
                records = []
            if record.kind not in (PAD, DISCARD):
                records.append(record)
            if record.kind in (DATA, LAST_FRAGMENT):
                yield records
                records = []
        if records:
            yield records

    def _records(self) -> Iterator[_Record]:
        """The chain up to HEAD, from the oldest record that is whole."""
        headers: list[Header] = list(RECORD.iter_unpack(self.data))
        end = len(headers)
        following = {end: end}  # the next start, by start
        for index in range(end - 1, -1, -1):
            length, kind, epoch, sequence = headers[index]
            if not DATA <= kind & KIND_MASK <= DISCARD or kind & ~_KIND_BITS:
                continue
            after = index + record_size(length + (CHECKSUM.size if kind & CHECKED else 0)) // ALIGN
            if after in following and (after == end or _follows(headers[after], epoch, sequence)):
                following[index] = after
        index = min(following)
        while index != end:
            yield _Record(index, following[index], headers[index])
            index = following[index]

    def _message(self, records: list[_Record], codec: Codec[Any]) -> PastMessage:
        first, last = records[0], records[-1]
        start = self.reading.writer.position - len(self.data)
        _, kind, epoch, sequence = last.header
        payload = b"".join(self._payload(record) for record in records)
        message, problem = None, ""
        if first.kind not in (DATA, FIRST_FRAGMENT):
            problem = "its beginning is overwritten"
        elif last.kind not in (DATA, LAST_FRAGMENT):
            problem = "its writer has not finished it"
        else:
            try:
                message = codec.decode_parts(_parts(memoryview(payload), kind >> ATTACHMENTS_SHIFT))
            except Exception:  # noqa: BLE001 (nobody knows who wrote these bytes; and an error's text may quote them)
                problem = "it does not decode"
        end = start + last.after * ALIGN
        unread_by = [
            slot for slot, reader in enumerate(self.reading.readers) if reader.state != "closed" and reader.position < end
        ]
        return PastMessage(start + first.index * ALIGN, epoch, sequence, len(payload), unread_by, message, problem)

    def _payload(self, record: _Record) -> bytes:
        start = record.index * ALIGN + RECORD_BYTES
        return self.data[start : start + record.header[0]]


def _follows(header: Header, epoch: int, sequence: int) -> bool:
    """Whether a record may come behind one of this epoch and number: as the next one, or as the first of a later writer.

    Epochs grow, which tells the oldest record from one that a writer had just begun to lay out over it.
    """
    _, _, its_epoch, its_sequence = header
    return its_sequence == (sequence + 1) & SEQUENCE_MASK if its_epoch == epoch else its_epoch > epoch and not its_sequence


def _parts(payload: memoryview, attachments: int) -> list[memoryview]:
    return frame.split(payload, attachments) if attachments else [payload]


def remember(memory: int, scan: int = SCAN_BYTES) -> RingHistory:
    """Copy the last `scan` bytes of the ring behind a descriptor, which stays the caller's; a multiple of 16. Nobody notices.

    Takes well under a millisecond. Raises SchemaMismatch for memory that is no ring of this version, or a damaged one.
    """
    try:
        with closing(RingView(memory)) as view, map_segment(memory, writable=False) as mapped:
            reading = view.read()
            offset = data_offset(len(reading.readers))
            if reading.capacity != len(mapped) - offset or reading.writer.position % ALIGN:
                raise SchemaMismatch("the ring's header is damaged")
            words = words_of(mapped, offset)
            fingerprint = words[W_FINGERPRINT]
            words.release()
            return RingHistory(reading, fingerprint, _last_bytes(mapped, offset, reading, scan))
    except (ArithmeticError, LookupError, ValueError):  # what numbers that nobody wrote on purpose lead to
        raise SchemaMismatch("the ring's header is damaged") from None


def _last_bytes(mapped: mmap.mmap, offset: int, reading: RingReading, scan: int) -> bytes:
    """What lies before HEAD, as far back as nobody is just overwriting it."""
    head, capacity = reading.writer.position, reading.capacity
    size = min(head, capacity, scan)
    low, high = offset + (head - size) % capacity, offset + head % capacity
    spans = [slice(low, high)] if size <= high - offset else [slice(low, offset + capacity), slice(offset, high)]
    first = b"".join([mapped[span] for span in spans])
    # A writer lays out a record from its beginning, so where it has overtaken the first copy, the second one differs.
    fence()  # order: HEAD, side B: both copies after HEAD, the second after the first
    second = b"".join([mapped[span] for span in spans])
    if first == second:
        return first
    return first[ALIGN * bisect_left(range(0, size, ALIGN), True, key=lambda at: first[at:] == second[at:]) :]
