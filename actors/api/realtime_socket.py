"""The WebSocket of a realtime session: messages in, events out, each within a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

MAX_MESSAGE = 1 << 20  # bytes of a client's event
HEARTBEAT = 30.0  # seconds of silence before a ping; half as long for the pong
SEND_SECONDS = 30.0  # that a client may take to make room for an event
CLOSE_SECONDS = 2.0  # that it gets to answer a close
PROTOCOL = "realtime"

_encode = msgspec.json.Encoder().encode


class SlowReader(Exception):
    """The client has not read its events for too long."""


class Socket:
    """Used by several tasks at once: an event goes out whole, in the order of the calls."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        # A compressed event would be made in a thread, or behind others; text of a few bytes gains nothing by it.
        self.response = web.WebSocketResponse(
            protocols=(PROTOCOL,),
            heartbeat=HEARTBEAT,
            timeout=CLOSE_SECONDS,
            max_msg_size=MAX_MESSAGE + 1,
            compress=False,
        )

    @property
    def can_open(self) -> bool:
        """Whether the request asks for a WebSocket."""
        return bool(self.response.can_prepare(self._request))

    async def open(self) -> None:
        """Accept. ConnectionError when the client has left."""
        await self.response.prepare(self._request)

    async def send(self, *events: dict[str, Any]) -> None:
        """Send events; waits while the client reads too slowly. Raises ConnectionError when it has left, SlowReader when it
        takes too long.
        """
        try:
            async with asyncio.timeout(SEND_SECONDS):
                for event in events:
                    await self.response.send_str(_encode(event).decode())
        except TimeoutError:
            raise SlowReader(f"an event could not be sent for {SEND_SECONDS:g} s") from None

    async def messages(self) -> AsyncIterator[str | bytes]:
        """What the client sends, until the connection ends in any way. Others get their turn between two."""
        while True:
            message = await self.response.receive()
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return
            yield message.data
            await asyncio.sleep(0)

    async def close(self, code: int, reason: str) -> None:
        """Say why, where the client has not closed, and end the connection, soon also where it reads nothing."""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(2 * CLOSE_SECONDS):
                await self.response.close(code=code, message=reason.encode(), drain=False)
        if (transport := self._request.transport) is not None:
            # What is not sent yet would hold the connection for as long as the client likes.
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, transport.abort)
