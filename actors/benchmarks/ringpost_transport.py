"""Ringpost's mailboxes: one ring from the hub with a reader slot for each peer, and a ring back from each."""

from collections.abc import Sequence
from typing import Any

from ...ipc.attach import attach_receiver, attach_sender
from ...ipc.codec import fingerprint_of
from ...ipc.errors import EndOfStream, WouldBlock
from ...ipc.mailbox import Receiver, Sender
from ...ipc.ring import create_ring
from ...ipc.waiting import Adaptive, Park, Spin, WaitStrategy
from .messages import BenchmarkMessage
from .transport import End, Setup

_RING_BYTES, _RING_BYTES_LARGE = 1 << 20, 1 << 23
_BATCH, _BATCH_LARGE = 256, 1  # messages held at once; with several large ones malloc keeps returning memory
_FOREVER_NS = 10**12
_FINGERPRINT = fingerprint_of(BenchmarkMessage)


class Link:
    """See transport.Link."""

    def __init__(self, setup: Setup) -> None:
        capacity = _RING_BYTES_LARGE if setup.large else _RING_BYTES
        self._down = create_ring("bench:down", capacity, _FINGERPRINT, setup.peers)
        self._up = [create_ring(f"bench:up[{number}]", capacity, _FINGERPRINT) for number in range(setup.peers)]
        self._batch = _BATCH_LARGE if setup.large else _BATCH
        self._waiting: WaitStrategy = Spin(_FOREVER_NS) if setup.spin else Park() if setup.sleep else Adaptive()

    async def hub(self) -> End:
        """See transport.Link."""
        receivers = [attach_receiver(ring, BenchmarkMessage) for ring in self._up]
        return _MailboxEnd(attach_sender(self._down, BenchmarkMessage), receivers, self._waiting, self._batch)

    async def peer(self, number: int) -> End:
        """See transport.Link."""
        receivers = [attach_receiver(self._down, BenchmarkMessage, slot=number)]
        return _MailboxEnd(attach_sender(self._up[number], BenchmarkMessage), receivers, self._waiting, self._batch)


class _MailboxEnd:
    def __init__(self, sender: Sender[Any], receivers: list[Receiver[Any]], waiting: WaitStrategy, batch: int) -> None:
        self._sender = sender
        self._receivers = receivers
        self._waiting = waiting
        self._batch = batch

    async def send(self, messages: Sequence[BenchmarkMessage]) -> None:
        sender = self._sender
        for message in messages:
            try:
                sender.send_nowait(message)
            except WouldBlock:
                await sender.send(message)

    async def receive(self) -> list[BenchmarkMessage]:
        messages: list[BenchmarkMessage] = []
        while True:
            for receiver in self._receivers:
                try:
                    messages += receiver.receive_many_nowait(self._batch)
                except WouldBlock:
                    pass
                except EndOfStream:  # met behind the last messages, which come first
                    if not messages:
                        raise
            if messages:
                return messages
            await self._waiting.wait(self._receivers)

    def close(self) -> None:
        self._sender.close()
        for receiver in self._receivers:
            receiver.close()
