"""Typed mailboxes over rings: a Sender at one end, a Receiver at the other, waiting without a busy loop."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from .codec import codec_of
from .doorbell import Doorbell
from .errors import Broken, WouldBlock
from .layout import DATA, DISCARD, FRAGMENT, LAST_FRAGMENT
from .parking import wait_any
from .ring import RingHandle, RingReader, RingWriter

M = TypeVar("M")
R = TypeVar("R", RingWriter, RingReader)


def _nobody() -> None:
    """Called when a bell rings that nobody waits for."""


class _End(Generic[R]):
    """What both ends share: the handle, which they own, the bell, parking and closing."""

    def __init__(self, handle: RingHandle, bell: int, attach: Callable[[], R]) -> None:
        self._handle = handle
        try:
            self._ring: R = attach()
        except BaseException:
            handle.close()
            raise
        self._wake: Callable[[], None] = _nobody
        self._bell = Doorbell(bell, lambda: self._wake())

    @property
    def name(self) -> str:
        """Name of the mailbox, for errors and logs."""
        return self._ring.name

    def arm(self, wake: Callable[[], None]) -> None:
        """See Parkable."""
        self._ring.park()
        self._wake = wake
        self._bell.listen()

    def disarm(self) -> None:
        """See Parkable."""
        self._ring.unpark()
        self._wake = _nobody

    def close(self) -> None:
        """Tell the other side and give back the memory; whoever waits at this end gets Closed. A second call does nothing."""
        if not self._ring.closed:
            self._ring.close()
            self._bell.close()
            self._ring.unmap()
            self._handle.close()
            self._wake()


class Sender(_End[RingWriter], Generic[M]):
    """Sends the messages of one union, in order. Owns its end of the ring and the handle; used from one event loop."""

    def __init__(self, handle: RingHandle, union: Any, epoch: int = 1) -> None:
        """Attach as the only writer. Raises SchemaMismatch, or Broken when a writer is attached; then the handle is closed."""
        self._codec = codec_of(union)
        super().__init__(handle, handle.space_bell, lambda: RingWriter(handle, self._codec.fingerprint, epoch))
        self._turn = asyncio.Lock()
        self._sending = 0  # sends that have begun; the lock alone is free for a moment between two of them
        self._wanted = 0  # payload bytes of the record that waits for room
        self._discard = False  # a fragmented message was cancelled midway; tell the reader before anything else

    @property
    def largest_nowait(self) -> int:
        """Encoded bytes of the largest message that `send_nowait` can take."""
        return self._ring.max_record

    def send_nowait(self, message: M) -> None:
        """Send at once or raise WouldBlock, also while a `send` waits. Closed, Broken, MessageTooLarge, TypeError as `send`."""
        payload = self._codec.encode(message)
        self._ring.check_length(len(payload))
        if self._sending or self._discard or len(payload) > self._ring.max_record:
            raise WouldBlock(f"mailbox {self.name}: needs to wait")
        if not self._ring.try_write(payload):
            self._wanted = len(payload)  # whoever waits for this end next waits for this message's room
            raise WouldBlock(f"mailbox {self.name}: full")

    async def send(self, message: M) -> None:
        """Send, waiting for room.

        Raises Closed after `close`, Broken when no reader is left, MessageTooLarge above MAX_MESSAGE bytes, TypeError for a
        message outside the union. Cancelled before it returns, the message is not received by anyone.
        """
        payload = self._codec.encode(message)
        self._ring.check_length(len(payload))
        self._sending += 1
        try:
            async with self._turn:
                await self._write_message(payload)
        finally:
            self._sending -= 1

    async def _write_message(self, payload: bytes) -> None:
        if self._discard:
            await self._write(b"", DISCARD)
            self._discard = False
        if len(payload) <= self._ring.max_record:
            await self._write(payload, DATA)
        else:
            await self._write_fragments(memoryview(payload))

    async def _write_fragments(self, payload: memoryview) -> None:
        size = self._ring.capacity // 4
        self._discard = True
        for start in range(0, len(payload), size):
            last = start + size >= len(payload)
            await self._write(payload[start : start + size], LAST_FRAGMENT if last else FRAGMENT)
        self._discard = False

    async def _write(self, payload: bytes | memoryview, kind: int) -> None:
        while not self._ring.try_write(payload, kind):
            self._wanted = len(payload)
            await wait_any([self])

    def ready(self) -> bool:
        """Whether the record that waits has room."""
        return self._ring.has_room_for(self._wanted)


class Receiver(_End[RingReader], Generic[M]):
    """Receives the messages of one union, in order. Owns its end of the ring and the handle; used from one event loop."""

    def __init__(self, handle: RingHandle, union: Any, slot: int = 0, epoch: int = 1) -> None:
        """Attach as the only reader of a slot. Raises SchemaMismatch, or Broken when it is taken; then the handle is closed."""
        self._codec = codec_of(union)
        bell = handle.data_bells[slot]
        super().__init__(handle, bell, lambda: RingReader(handle, self._codec.fingerprint, slot, epoch))

    def receive_nowait(self) -> M:
        """The next message. Raises WouldBlock when there is none yet; EndOfStream, Broken as `receive`."""
        view = self._ring.peek()
        if view is None:
            raise WouldBlock(f"mailbox {self.name}: empty")
        try:
            message: M = self._codec.decode(view)
        except msgspec.DecodeError as error:
            del view  # the traceback keeps this frame, and a view would keep the memory from being given back
            raise Broken(f"mailbox {self.name}: a record does not decode: {error}") from None
        self._ring.advance()
        return message

    async def receive(self) -> M:
        """The next message, waiting for it. Cancelled, it takes nothing.

        Raises EndOfStream after the last message of a writer that closed, Broken when the writer died or a record is corrupt,
        Closed after `close`.
        """
        while True:
            try:
                return self.receive_nowait()
            except WouldBlock:
                await wait_any([self])

    def ready(self) -> bool:
        """Whether `receive_nowait` would not raise WouldBlock."""
        return self._ring.readable()
