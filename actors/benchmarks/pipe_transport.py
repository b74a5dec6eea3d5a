"""multiprocessing.Pipe: a connection to each peer, used as it is, without an event loop."""

from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from .messages import BenchmarkMessage, decode, encode
from .transport import End, Setup


class Link:
    """See transport.Link."""

    def __init__(self, setup: Setup) -> None:
        self._pairs = [Pipe() for _ in range(setup.peers)]
        self._spin = setup.spin

    async def hub(self) -> End:
        """See transport.Link."""
        return _PipeEnd([ours for ours, _ in self._pairs], spin=self._spin)

    async def peer(self, number: int) -> End:
        """See transport.Link."""
        return _PipeEnd([self._pairs[number][1]], spin=self._spin)


class _PipeEnd:
    def __init__(self, connections: "Sequence[Connection]", *, spin: bool) -> None:
        self._connections = connections
        self._spin = spin

    async def send(self, messages: Sequence[BenchmarkMessage]) -> None:
        for message in messages:
            data = encode(message)
            for connection in self._connections:
                connection.send_bytes(data)

    async def receive(self) -> list[BenchmarkMessage]:
        if len(self._connections) > 1:
            ready = wait(self._connections)
            return [decode(connection.recv_bytes()) for connection in self._connections if connection in ready]
        (connection,) = self._connections
        while self._spin and not connection.poll():
            pass
        return [decode(connection.recv_bytes())]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
