"""Streams of events as they come over sockets of their own, to their very end."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from api_client import CHAT, COMPLETIONS, Client, Json

ENDLESS: dict[str, Any] = {"max_tokens": 50_000, "ignore_eos": True}  # on a model that is made for as many
_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"


class RawStream:
    """The events of one stream, and how the server ended it."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._read = b""

    async def begun(self) -> None:
        """Wait for the first event."""
        self._read += await self._reader.readuntil(b"}\n\n")

    async def events(self) -> list[Json]:
        """All events, once the server has sent [DONE] and closed the connection."""
        self._read += await self._reader.read()
        return self._events()

    async def events_until_done(self) -> list[Json]:
        """All events, once the server has sent [DONE]; the connection stays open."""
        while not self._read.endswith(_END):
            more = await self._reader.read(1 << 16)
            assert more, self._read[-100:]
            self._read += more
        return self._events()

    def _events(self) -> list[Json]:
        *events, done = re.findall(rb"data: (.+)\n\n", self._read)
        assert done == b"[DONE]"
        assert self._read.endswith(_END), self._read[-100:]
        return [json.loads(event) for event in events]


@asynccontextmanager
async def begun_streams(
    client: Client, count: int = 3, *, little_room: bool = False, **fields: Any
) -> AsyncIterator[list[RawStream]]:
    """So many streams, of both routes, each of which has had its first event. `little_room` as in `Client.sent`."""
    bodies: list[tuple[str, Json]] = [
        (COMPLETIONS, {"prompt": "ab"}),
        (CHAT, {"messages": [{"role": "user", "content": "ab"}]}),
    ]
    async with AsyncExitStack() as sockets:
        streams = []
        for number in range(count):
            path, body = bodies[number % 2]
            sent = client.sent(path, body | {"stream": True} | fields, little_room=little_room)
            reader = await sockets.enter_async_context(sent)
            streams.append(RawStream(reader))
        for stream in streams:
            await stream.begun()
        yield streams
