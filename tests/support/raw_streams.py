"""Streams of events as they come over sockets of their own, to their very end."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from api_client import CHAT, COMPLETIONS, Client, Json

ENDLESS = {"max_tokens": 50_000, "ignore_eos": True}  # on a model that is made for as many


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
        *events, done = re.findall(rb"data: (.+)\n\n", self._read)
        assert done == b"[DONE]"
        assert self._read.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), self._read[-100:]
        return [json.loads(event) for event in events]


@asynccontextmanager
async def begun_streams(client: Client, count: int = 3, **fields: Any) -> AsyncIterator[list[RawStream]]:
    """So many streams, of both routes, each of which has had its first event."""
    bodies: list[tuple[str, Json]] = [
        (COMPLETIONS, {"prompt": "ab"}),
        (CHAT, {"messages": [{"role": "user", "content": "ab"}]}),
    ]
    async with AsyncExitStack() as sockets:
        streams = []
        for number in range(count):
            path, body = bodies[number % 2]
            reader = await sockets.enter_async_context(client.sent(path, body | {"stream": True} | fields))
            streams.append(RawStream(reader))
        for stream in streams:
            await stream.begun()
        yield streams
