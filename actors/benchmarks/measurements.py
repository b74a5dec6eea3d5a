"""What is measured of a transport: throughput of echoes, time of a round trip, throughput of a broadcast."""

from collections.abc import Callable, Coroutine
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any

import msgspec

from .messages import BenchmarkMessage, Ready, Received, Stop
from .transport import End

Figures = dict[str, float]  # the first one is compared between transports
_RATE, _MEDIAN, _P99 = "messages_per_second", "median_us", "p99_us"
_WARM_UP = 0.05  # seconds, and as many messages, so that all memory has been touched
_WARM_UP_MESSAGES = 32
_WINDOW = 128  # echoes in flight, at most
_CHUNK = 1000  # messages of a broadcast for each of which, as a whole, a peer answers once; at most
_CHUNK_BYTES = 2_000_000
_CHUNKS_IN_FLIGHT = 4


class Case(msgspec.Struct, frozen=True):
    """One measurement as both sides know it."""

    message: BenchmarkMessage
    size: int  # bytes
    seconds: float
    in_flight: int  # bytes, at most
    peers: int

    @property
    def window(self) -> int:
        """Echoes in flight."""
        return max(1, min(_WINDOW, self.in_flight // self.size))

    @property
    def chunk(self) -> int:
        """Messages of a broadcast that are confirmed together."""
        return max(1, min(_CHUNK, _CHUNK_BYTES // self.size))


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of measurement."""

    title: str
    unit: str
    hub: Callable[[End, Case], Coroutine[Any, Any, Figures]]
    peer: Callable[[End, Case, int], Coroutine[Any, Any, None]]
    peers: int = 1
    spin: bool = False
    sleep: bool = False


async def run_hub(measurement: Measurement, end: End, case: Case) -> Figures:
    """Wait for the peers, measure, and let the peers end."""
    waiting = set(range(case.peers))
    while waiting:
        waiting -= {message.peer for message in await end.receive() if isinstance(message, Ready)}
    figures = await measurement.hub(end, case)
    await end.send([Stop()])
    return figures


async def _echoes(hub: End, case: Case) -> Figures:
    """Each message counts when it goes and when it comes back."""
    await hub.send([case.message] * case.window)
    await _echo_for(hub, _WARM_UP, _WARM_UP_MESSAGES)
    rate = await _echo_for(hub, case.seconds)
    left = case.window
    while left:
        echoed = await hub.receive()
        assert all(message == case.message for message in echoed), echoed
        left -= len(echoed)
    return {_RATE: 2 * rate}


async def _echo_for(hub: End, seconds: float, messages_at_least: int = 1) -> float:
    """Send back what comes back; returns how much that was a second."""
    count = 0
    began = now = perf_counter()
    while now - began < seconds or count < messages_at_least:
        messages = await hub.receive()
        await hub.send(messages)
        count += len(messages)
        now = perf_counter()
    return count / (now - began)


async def _round_trips(hub: End, case: Case) -> Figures:
    await _round_trips_for(hub, case.message, _WARM_UP, _WARM_UP_MESSAGES)
    times = sorted(await _round_trips_for(hub, case.message, case.seconds))
    return {_MEDIAN: median(times) / 1000, _P99: times[len(times) * 99 // 100] / 1000}


async def _round_trips_for(hub: End, message: BenchmarkMessage, seconds: float, messages_at_least: int = 1) -> list[int]:
    """Nanoseconds of each."""
    times: list[int] = []
    messages = [message]
    end = perf_counter() + seconds
    while len(times) < messages_at_least or perf_counter() < end:
        began = perf_counter_ns()
        await hub.send(messages)
        await hub.receive()
        times.append(perf_counter_ns() - began)
    return times


async def _echo(end: End, case: Case, number: int) -> None:
    """A peer that sends everything back."""
    await end.send([Ready(number)])
    while not isinstance((messages := await end.receive())[-1], Stop):
        await end.send(messages)


class _Broadcast:
    """A hub that never is more than a few chunks ahead of its slowest peer, so that nothing has to be dropped."""

    def __init__(self, hub: End, case: Case) -> None:
        self._hub = hub
        self._batch = [case.message] * case.chunk
        self._ahead = case.chunk * (_CHUNKS_IN_FLIGHT - 1)
        self._sent = 0
        self._received = [0] * case.peers

    async def send_for(self, seconds: float, messages_at_least: int = 1) -> float:
        """Send until so many seconds are over and all has been received; returns the messages a second."""
        first, began = self._sent, perf_counter()
        while self._sent - first < messages_at_least or perf_counter() - began < seconds:
            await self._hub.send(self._batch)
            self._sent += len(self._batch)
            await self._catch_up(self._sent - self._ahead)
        await self._catch_up(self._sent)
        return (self._sent - first) / (perf_counter() - began)

    async def _catch_up(self, count: int) -> None:
        """Wait until every peer has received so many messages."""
        while min(self._received) < count:
            for message in await self._hub.receive():
                assert isinstance(message, Received), message
                self._received[message.peer] = message.count


async def _broadcasts(hub: End, case: Case) -> Figures:
    """Each message counts once, however many receive it."""
    broadcast = _Broadcast(hub, case)
    await broadcast.send_for(_WARM_UP, _WARM_UP_MESSAGES)
    return {_RATE: await broadcast.send_for(case.seconds)}


async def _count(end: End, case: Case, number: int) -> None:
    """A peer that receives a broadcast."""
    await end.send([Ready(number)])
    received, due = 0, case.chunk
    while not isinstance((messages := await end.receive())[-1], Stop):
        received += len(messages)
        if received >= due:
            await end.send([Received(number, received)])
            due = received - received % case.chunk + case.chunk


MEASUREMENTS = {
    "echo": Measurement(title="Echo throughput", unit="messages/s, each way counted once", hub=_echoes, peer=_echo),
    "parked": Measurement(
        title="Round trip, sleeping while it waits", unit="µs, median / p99", hub=_round_trips, peer=_echo, sleep=True
    ),
    "spinning": Measurement(
        title="Round trip, polling while it waits", unit="µs, median / p99", hub=_round_trips, peer=_echo, spin=True
    ),
    "broadcast": Measurement(title="Broadcast to 4 processes", unit="messages/s", hub=_broadcasts, peer=_count, peers=4),
}
