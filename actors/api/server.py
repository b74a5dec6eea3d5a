"""HttpServer: an application behind a listening socket, with limits on connections."""

import asyncio
import logging
import socket
from types import TracebackType
from typing import Self, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ...ipc.messages.config import ApiConfig
from ..logs import logger
from .listening import unusable

_KEEPALIVE = 75.0  # seconds an idle connection stays open
_BACKLOG = 1024  # connections that the system holds until they are accepted
_CLOSE_GRACE = 1.0  # seconds that handlers get to end when the server closes
_LINGER = 2.0  # seconds that a client which is turned away gets to read why,
_MAX_LEAVING = 256  # if no more of them do than this
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\nRetry-After: 1\r\n\r\n"


class _Door(asyncio.Protocol):
    """A connection that has just been made: handed to the application, or turned away where there are too many.

    One that is turned away is read to its end, for a moment: closed before, it would be reset, and a client that still sends
    would never see its answer.
    """

    def __init__(self, server: web.Server, limit: int, leaving: "set[asyncio.Transport]") -> None:
        self._server = server
        self._limit = limit
        self._leaving = leaving  # those turned away, still open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class
        if len(self._server.connections) < self._limit:
            handler = self._server()
            self._transport.set_protocol(handler)
            handler.connection_made(self._transport)
        elif len(self._leaving) < _MAX_LEAVING:
            self._leaving.add(self._transport)
            self._transport.write(_FULL)
            self._transport.write_eof()
            self._timer = asyncio.get_running_loop().call_later(_LINGER, self._transport.abort)
        else:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport in self._leaving:
            self._leaving.remove(self._transport)
            self._timer.cancel()


def _worth_a_line(record: logging.LogRecord) -> bool:
    """A client that does not speak HTTP, or sends a broken body, gets its 400, but no traceback in our log."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError | web.RequestPayloadError))


class HttpServer:
    """`async with HttpServer(app, config, sock) as server`: serves inside the block.

    Leaving it closes the socket and every connection; handlers still running get a moment, then they are cancelled.
    """

    def __init__(self, app: web.Application, config: ApiConfig, sock: socket.socket) -> None:
        self._config = config
        self._sock = sock
        self._leaving: set[asyncio.Transport] = set()
        self._log = logger.getChild("http")
        self._log.addFilter(_worth_a_line)
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,  # a client that leaves ends its request
            keepalive_timeout=_KEEPALIVE,
            shutdown_timeout=_CLOSE_GRACE,
            logger=self._log,
            access_log=self._log,
            access_log_format='%a "%r" %s %b bytes %Tf s',
        )

    @property
    def url(self) -> str:
        """Where it listens. Only inside the block."""
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        """Listen. Raises ValueError when another server took the port meanwhile."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._sock.listen(_BACKLOG)  # uvloop does it again, but keeps an error to itself
            self._listener = await loop.create_server(self._connect, sock=self._sock, backlog=_BACKLOG)
        except OSError as error:
            await self._runner.cleanup()
            raise unusable(self._config, error) from None
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._listener.close()
        for transport in list(self._leaving):
            transport.abort()
        await self._runner.cleanup()

    def _connect(self) -> asyncio.BaseProtocol:
        assert self._runner.server is not None
        return _Door(self._runner.server, self._config.max_connections, self._leaving)
