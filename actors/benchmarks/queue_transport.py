"""multiprocessing.Queue: one to each peer, and one back for all. It pickles the encoded bytes, and sends from a thread."""

from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.queues import Queue

from .messages import BenchmarkMessage, decode, encode
from .transport import End, Setup


class Link:
    """See transport.Link."""

    def __init__(self, setup: Setup) -> None:
        context = get_context("fork")
        self._down: list[Queue[bytes]] = [context.Queue() for _ in range(setup.peers)]
        self._up: Queue[bytes] = context.Queue()

    async def hub(self) -> End:
        """See transport.Link."""
        return _QueueEnd(self._down, self._up)

    async def peer(self, number: int) -> End:
        """See transport.Link."""
        return _QueueEnd([self._up], self._down[number])


class _QueueEnd:
    def __init__(self, outputs: "Sequence[Queue[bytes]]", source: "Queue[bytes]") -> None:
        self._outputs = outputs
        self._source = source

    async def send(self, messages: Sequence[BenchmarkMessage]) -> None:
        for message in messages:
            data = encode(message)
            for queue in self._outputs:
                queue.put(data)

    async def receive(self) -> list[BenchmarkMessage]:
        return [decode(self._source.get())]

    def close(self) -> None:
        for queue in self._outputs:
            queue.close()
            queue.join_thread()
        self._source.close()
