"""The HTTP server over an engine of the test's own, on a real socket of this process."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from api_client import Body, Client, Json
from scripted_engine import ScriptedEngine

from ringpost.actors.api.app import build_app
from ringpost.actors.api.listening import bind
from ringpost.actors.api.server import HttpServer
from ringpost.ipc.messages.config import ApiConfig


@dataclass
class Reply:
    """A reply as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        assert self.headers["Content-Type"].startswith("application/json"), self.headers
        content: Json = json.loads(self.body)
        return content

    @property
    def error(self) -> Json:
        """The error of a reply that is one, in OpenAI's form."""
        assert self.status >= 400, (self.status, self.body)
        error: Json = self.json["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"]
        return error

    @property
    def events(self) -> list[Json]:
        """The events of a stream that ends as it should."""
        assert self.status == 200, (self.status, self.body)
        *events, done, rest = self.body.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        assert all(event.startswith(b"data: {") and b"\n" not in event for event in events)
        return [json.loads(event.removeprefix(b"data: ")) for event in events]


class AppClient(Client):
    """A client of a server in this process."""

    def __init__(self, url: str, app: web.Application, server: HttpServer) -> None:
        super().__init__(url)
        self.app = app
        self.server = server

    async def call(
        self,
        path: str,
        body: Body | AsyncIterator[bytes] | None = None,
        headers: dict[str, str] | None = None,
        method: str = "POST",
        **options: Any,
    ) -> Reply:
        """The whole reply to a request, whatever it is; a body is JSON unless the headers say otherwise."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        kind = {} if data is None else {"Content-Type": "application/json"}
        async with self._http.request(method, path, data=data, headers=kind | (headers or {}), **options) as reply:
            return Reply(reply.status, reply.headers, await reply.read())

    async def get(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        """The reply to a GET."""
        return await self.call(path, headers=headers, method="GET")

    async def raw(self, sent: bytes) -> bytes:
        """What comes back for these bytes until the server closes the connection."""
        async with connection(self.url) as (reader, writer):
            writer.write(sent)
            return await reader.read()


def post_bytes(path: str, body: Json, *headers: str) -> bytes:
    """A request as it goes over the wire."""
    content = json.dumps(body).encode()
    kind, length = "Content-Type: application/json", f"Content-Length: {len(content)}"
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", kind, length, *headers, "", ""]).encode() + content


@asynccontextmanager
async def connection(url: str, **options: Any) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection of one's own, closed at the end of the block."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, **options)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def unread(url: str, path: str, body: Json) -> AsyncIterator[None]:
    """A client that asks for much and reads none of it."""
    where = urlsplit(url)
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        sock.setblocking(False)
        await loop.sock_connect(sock, (where.hostname, where.port))
        await loop.sock_sendall(sock, post_bytes(path, body))
        yield


@asynccontextmanager
async def serving(app: web.Application, config: ApiConfig) -> AsyncIterator[AppClient]:
    """A client of this application, served inside the block."""
    with bind(config) as sock:
        async with HttpServer(app, config, sock) as server, AppClient(server.url, app, server) as client:
            yield client


@asynccontextmanager
async def served(engine: ScriptedEngine, **options: Any) -> AsyncIterator[AppClient]:
    """The same of the API over an engine; the options are ApiConfig's."""
    config = ApiConfig(port=0, served_model_name=("m", "alias"), **options)
    async with serving(build_app(engine, config), config) as client:
        yield client
