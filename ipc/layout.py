"""Byte layout of a ring: the only place that knows offsets.

    0      magic       version, and "this is a ring"
    8      capacity    bytes of the data area, a power of two
    16     readers     number of reader slots
    24     fingerprint of the union of messages
    64     HEAD        bytes ever published              written by the writer only
    72     WRITER      state of the writer's side
    80     WRITER_EPOCH
    128    W_PARKED    1 while the writer waits for room written by the writer only
    192    reader slot 0
             +0    TAIL       bytes ever released        written by that reader only
             +8    READER     state of the slot
             +16   READER_EPOCH
             +64   R_PARKED   1 while the reader waits   written by that reader only
    320    reader slot 1 ...
    data   starts on the next page

Each group that different processes write lies on cache lines of its own. HEAD and TAIL only grow; the byte at position p
lies at data + p % capacity. Records start at multiples of 16 and never wrap: PAD fills the rest of a lap.

    record   0  u32  payload length in bytes
             4  u16  kind
             6  u16  0
             8  u32  epoch of the writer
             12 u32  sequence number of the record, modulo 2**32
             16      payload, then up to 15 unused bytes

States of a side: FREE -> ATTACHED -> CLOSED (by itself) or GONE (by the supervisor, when it has reaped the process).
"""

import struct

MAGIC = 0x0001_676E_6972_7072  # "rpring", version 1
LINE = 64
PAGE = 4096
ALIGN = 16

# Indices of 64-bit words.
W_MAGIC, W_CAPACITY, W_READERS, W_FINGERPRINT = 0, 1, 2, 3
W_HEAD, W_WRITER, W_WRITER_EPOCH = 8, 9, 10
W_WRITER_PARKED = 16
_SLOT0, _SLOT_WORDS = 24, 16

FREE, ATTACHED, CLOSED, GONE = 0, 1, 2, 3

RECORD = struct.Struct("<IHHII")
DATA, PAD, FRAGMENT, LAST_FRAGMENT, DISCARD = 1, 2, 3, 4, 5


def w_tail(slot: int) -> int:
    """Index of the word that holds a reader slot's TAIL."""
    return _SLOT0 + slot * _SLOT_WORDS


def w_reader(slot: int) -> int:
    """Index of the word that holds a reader slot's state."""
    return w_tail(slot) + 1


def w_reader_epoch(slot: int) -> int:
    """Index of the word that holds a reader slot's epoch."""
    return w_tail(slot) + 2


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
