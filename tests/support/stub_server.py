"""A server of OpenAI's API that says what a test tells it to, in a thread of this process."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODELS = json.dumps({"object": "list", "data": [{"id": "first"}, {"id": "second"}]}).encode()
DONE = b"data: [DONE]\n\n"


def event(**content: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(content).encode()


def piece(text: str) -> bytes:
    """An event with a piece of an answer."""
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])


def failure(message: str, code: str | None = None) -> bytes:
    """Body of a refusal."""
    return json.dumps({"error": {"message": message, "type": "some_error", "param": None, "code": code}}).encode()


@dataclass
class Reply:
    """What the server sends for one request."""

    content: bytes
    status: int = 200
    then: str = "end"  # "hold": say no more until the client leaves; "break": break the connection


def answer(*pieces: str) -> Reply:
    """A whole stream, which begins with the role and ends in order."""
    role = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
    last = event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    return Reply(b"".join([role, *map(piece, pieces), last, DONE]))


@dataclass
class StubServer:
    """What it will reply, and what it was asked."""

    replies: list[Reply]  # to /v1/chat/completions, in turn
    models: Reply
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)  # of all requests
    was_asked: threading.Event = field(default_factory=threading.Event)
    was_left: threading.Event = field(default_factory=threading.Event)  # by a client that had no whole answer
    stop: Callable[[], object] = lambda: None

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, self.models)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        return await self._send(request, self.replies.pop(0))

    async def _send(self, request: web.Request, reply: Reply) -> web.StreamResponse:
        self.keys.append(request.headers.get("Authorization"))
        self.was_asked.set()
        response = web.StreamResponse(status=reply.status)
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(reply.content)
        if reply.then == "break":
            assert request.transport is not None
            request.transport.close()
        elif reply.then == "hold":
            try:
                await asyncio.Event().wait()
            finally:
                self.was_left.set()
        return response


@contextmanager
def stub_server(*replies: Reply, models: Reply | None = None) -> Iterator[StubServer]:
    """A server that gives these replies, with two models unless told otherwise."""
    stub = StubServer(list(replies), models or Reply(MODELS))
    ready = threading.Event()
    thread = threading.Thread(target=_run, args=(stub, ready))
    thread.start()
    ready.wait()
    try:
        yield stub
    finally:
        stub.stop()
        thread.join()


def _run(stub: StubServer, ready: threading.Event) -> None:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(_serve(stub, ready))


async def _serve(stub: StubServer, ready: threading.Event) -> None:
    app = web.Application()
    app.add_routes([web.get("/v1/models", stub.list_models), web.post("/v1/chat/completions", stub.chat)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    stub.stop = lambda: loop.call_soon_threadsafe(stopped.set)
    try:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        stub.url = site.name
        ready.set()
        await stopped.wait()
    finally:
        ready.set()
        await runner.cleanup()
