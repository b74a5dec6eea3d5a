"""Server-sent events: one response that carries events as they come, and ends in [DONE]."""

from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from .errors import describe_error

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies such as nginx would keep events back
}
_encode = msgspec.json.Encoder().encode


class EventStream:
    """`async with EventStream(request, headers) as stream`: status and headers go out at once, [DONE] at the end.

    An exception inside the block becomes an error event, because the status has been sent. That the client has left is none:
    a send raises ConnectionError then, which passes through.
    """

    def __init__(self, request: web.Request, headers: dict[str, str]) -> None:
        self._request = request
        self.response = web.StreamResponse(headers=_HEADERS | headers)

    async def __aenter__(self) -> Self:
        await self.response.prepare(self._request)
        return self

    async def send(self, *events: msgspec.Struct) -> None:
        """Send events together, each one `data:` line and a blank line. Waits while the client reads too slowly."""
        await self.response.write(b"".join([b"data: %b\n\n" % _encode(event) for event in events]))

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if error is not None and (isinstance(error, ConnectionError) or not isinstance(error, Exception)):
            return False
        if isinstance(error, Exception):
            await self.send(describe_error(error)[1])
        await self.response.write(b"data: [DONE]\n\n")
        await self.response.write_eof()
        return True
