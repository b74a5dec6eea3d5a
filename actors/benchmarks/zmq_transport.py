"""ZeroMQ through zmq.asyncio: a PAIR of sockets with one peer, XPUB/SUB and PUSH/PULL with several."""

from collections.abc import Sequence

import zmq
import zmq.asyncio

from ...ipc.codec import Codec
from .messages import BenchmarkMessage
from .transport import End, Setup

_UNLIMITED = 0


class Link:
    """See transport.Link."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._down, self._up = f"ipc://{setup.folder}/down", f"ipc://{setup.folder}/up"

    async def hub(self) -> End:
        """See transport.Link."""
        context = zmq.asyncio.Context()
        if self._setup.peers == 1:
            pair = _socket(context, zmq.PAIR)
            pair.bind(self._down)
            return _ZmqEnd(context, pair, pair, self._setup)
        publisher, replies = _socket(context, zmq.XPUB), _socket(context, zmq.PULL)
        publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        publisher.bind(self._down)
        replies.bind(self._up)
        for _ in range(self._setup.peers):
            await publisher.recv()  # a subscription; what is published before it would be lost
        return _ZmqEnd(context, publisher, replies, self._setup)

    async def peer(self, number: int) -> End:
        """See transport.Link."""
        context = zmq.asyncio.Context()
        if self._setup.peers == 1:
            pair = _socket(context, zmq.PAIR)
            pair.connect(self._down)
            return _ZmqEnd(context, pair, pair, self._setup)
        replies, subscriber = _socket(context, zmq.PUSH), _socket(context, zmq.SUB)
        replies.connect(self._up)
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        subscriber.connect(self._down)
        return _ZmqEnd(context, replies, subscriber, self._setup)


def _socket(context: zmq.asyncio.Context, kind: int) -> zmq.asyncio.Socket:
    """A socket that drops nothing: the benchmark bounds what is in flight."""
    socket = context.socket(kind)
    socket.set_hwm(_UNLIMITED)
    return socket


class _ZmqEnd:
    """Small messages cross as copied frames, which is quickest; those with a payload as several, which are not copied."""

    def __init__(
        self, context: zmq.asyncio.Context, output: zmq.asyncio.Socket, source: zmq.asyncio.Socket, setup: Setup
    ) -> None:
        self._context = context
        self._output, self._source = output, source
        self._codec: Codec[BenchmarkMessage] = Codec(BenchmarkMessage)
        self._large = setup.large
        self._spin = setup.spin

    async def send(self, messages: Sequence[BenchmarkMessage]) -> None:
        codec = self._codec
        for message in messages:
            data = codec.encode(message)
            if self._large:
                await self._output.send_multipart([data, *codec.take_attachments()], copy=False)
            else:
                await self._output.send(data)

    async def receive(self) -> list[BenchmarkMessage]:
        while self._spin and not await self._source.poll(0):
            pass
        if self._large:
            frames = await self._source.recv_multipart(copy=False)
            return [self._codec.decode_parts([frame.buffer for frame in frames])]
        return [self._codec.decode(await self._source.recv())]

    def close(self) -> None:
        self._output.close()
        self._source.close()
        self._context.term()
