"""Byte layout of a ring: the only place that knows offsets.

    0      magic       version, and "this is a ring"
    8      capacity    bytes of the data area, a power of two
    16     readers     number of reader slots
    24     fingerprint of the union of messages
    64     HEAD        bytes ever published              64 to 127 are written by the writer only
    72     WRITER      state of the writer's side        (and GONE by the supervisor)
    80     WRITER_EPOCH
    88     counters    messages, waits, nanoseconds waited, lost wake-ups
    128    W_PARKED    its parking: odd while it waits   written by the writer only
    192    reader slot 0
             +0    TAIL       bytes ever released        +0 to +63 are written by that reader only
             +8    READER     state of the slot          (and GONE by the supervisor)
             +16   READER_EPOCH
             +24   counters   as the writer's
             +64   R_PARKED   as the writer's            written by that reader only
    320    reader slot 1 ...
    data   starts on the next page

A parked word counts up by one when a wait begins and when it ends, so the other side can tell one wait from the next, and rings
once for each. Each group that different processes write lies on cache lines of its own.

HEAD and TAIL only grow; the byte at position p lies at data + p % capacity. Records start at multiples of 16 and never wrap:
PAD fills the rest of a lap.

    record   0  u32  payload length in bytes
             4  u32  kind, | CHECKED when a CRC-32 follows the payload, | number of attachments << 16 (see frame.py)
             8  u32  epoch of the writer
             12 u32  sequence number of the record, modulo 2**32
             16      payload, in debug mode the u32 CRC-32 of header and payload, then up to 15 unused bytes

    state of a side   FREE      somebody is to come, for the first time or as successor of one that died -> ATTACHED
                      ATTACHED  one process has it, no other may  -> CLOSED; by the supervisor that reaped it: GONE, FREE
                      CLOSED    its process left in good order    -> ATTACHED
                      GONE      its process died, and nobody is expected in its place -> ATTACHED, FREE
"""

import struct

MAGIC = 0x0002_676E_6972_7072  # "rpring", version 2
LINE = 64
PAGE = 4096
ALIGN = 16

# Indices of 64-bit words.
W_MAGIC, W_CAPACITY, W_READERS, W_FINGERPRINT = 0, 1, 2, 3
W_HEAD, W_WRITER, W_WRITER_EPOCH, W_WRITER_COUNTERS = 8, 9, 10, 11
W_WRITER_PARKED = 16
_SLOT0, _SLOT_WORDS = 24, 16
MESSAGES, WAITS, WAIT_NS, LOST = 0, 1, 2, 3  # counters, from the first one of a side

FREE, ATTACHED, CLOSED, GONE = 0, 1, 2, 3

RECORD = struct.Struct("<IIII")
RECORD_BYTES = RECORD.size
DATA, PAD, FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, DISCARD = 1, 2, 3, 4, 5, 6
KIND_MASK, CHECKED, ATTACHMENTS_SHIFT = 0xFF, 0x100, 16
CHECKSUM = struct.Struct("<I")
SEQUENCE_MASK = 0xFFFF_FFFF


def w_tail(slot: int) -> int:
    """Index of the word that holds a reader slot's TAIL."""
    return _SLOT0 + slot * _SLOT_WORDS


def w_reader(slot: int) -> int:
    """Index of the word that holds a reader slot's state."""
    return w_tail(slot) + 1


def w_reader_epoch(slot: int) -> int:
    """Index of the word that holds a reader slot's epoch."""
    return w_tail(slot) + 2


def w_reader_counters(slot: int) -> int:
    """Index of the first word of a reader slot's counters."""
    return w_tail(slot) + 3


def w_reader_parked(slot: int) -> int:
    """Index of a reader slot's parked word, on a line of its own."""
    return w_tail(slot) + 8


def data_offset(readers: int) -> int:
    """Byte offset of the data area."""
    end = (_SLOT0 + readers * _SLOT_WORDS) * 8
    return -(-end // PAGE) * PAGE


def record_size(payload: int) -> int:
    """Bytes a record takes in the ring for a payload of this many bytes."""
    return (RECORD.size + payload + ALIGN - 1) & -ALIGN
