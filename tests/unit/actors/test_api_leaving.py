"""Clients that leave before their answer is complete, or do not read it."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from api_client import CHAT, COMPLETIONS, Client, Json
from scripted_engine import End, ScriptedEngine, Step
from served_app import AppClient, post_bytes, served, unread

from ringpost.actors.api.app import build_app
from ringpost.actors.errors import EngineDeadError

BODIES: dict[str, Json] = {COMPLETIONS: {"prompt": "hi"}, CHAT: {"messages": [{"role": "user", "content": "hi"}]}}
PATHS = list(BODIES)


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reset", [False, True])
async def test_a_client_that_leaves_ends_its_request(
    no_leaks: None, api: AppClient, engine: ScriptedEngine, path: str, stream: bool, reset: bool
) -> None:
    engine.answers[None] = ["a"]
    body = BODIES[path] | {"stream": stream, "request_id": "r"}
    async with api.sent(path, body, reset=reset) as reader:
        await engine.nth_request(0)
        if stream:
            await reader.readuntil(b"}\n\n")
    await engine.until(lambda: engine.aborted == ["r"])
    assert engine.num_unfinished_requests == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_its_prompt_is_rendered(
    no_leaks: None, api: AppClient, engine: ScriptedEngine, path: str, stream: bool
) -> None:
    engine.may_render.clear()
    async with api.sent(path, BODIES[path] | {"stream": stream}):
        await engine.until(lambda: engine.rendering == 1)
    await engine.until(lambda: engine.rendering == 0)
    assert engine.num_unfinished_requests == 0
    assert engine.requests == []


@pytest.mark.asyncio
async def test_a_client_that_leaves_ends_all_its_prompts(no_leaks: None, api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["a"]
    for stream in (False, True):
        engine.aborted.clear()
        async with api.sent(COMPLETIONS, {"prompt": ["cat", "dog", "bird"], "stream": stream, "request_id": "r"}):
            await engine.until(lambda: engine.num_unfinished_requests == 3)
        await engine.until(lambda: sorted(engine.aborted) == ["r-0", "r-1", "r-2"])


@pytest.mark.asyncio
async def test_a_client_that_leaves_is_no_line_in_the_log(
    api: AppClient, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.answers[None] = ["a"]
    for stream in (False, True):
        async with api.sent(COMPLETIONS, {"prompt": "hi", "stream": stream}, reset=True):
            await engine.until(lambda: engine.num_unfinished_requests == 1)
        await engine.until(lambda: engine.num_unfinished_requests == 0)
    metrics = await api.until(lambda scrape: scrape.value("ringpost:http_requests_total", status="499") == 2)
    assert metrics.value("ringpost:http_requests_total", status="500") != 1
    assert not caplog.records


@asynccontextmanager
async def mounted(engine: ScriptedEngine) -> AsyncIterator[Client]:
    """The application as another program may run it: aiohttp does not cancel the handler of a client that leaves."""
    runner = web.AppRunner(build_app(engine), shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with Client(site.name) as client:
            yield client
    finally:
        await runner.cleanup()


@asynccontextmanager
async def vanishing(url: str, request: bytes) -> AsyncIterator[socket.socket]:
    """A client that has sent this, and whose connection is reset at the end of the block, before anything else can happen."""
    where = urlsplit(url)
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await loop.sock_connect(sock, (where.hostname, where.port))
        await loop.sock_sendall(sock, request)
        yield sock


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("how", [served, mounted])
async def test_a_client_that_vanishes_just_before_the_end_is_no_line_in_the_log(
    engine: ScriptedEngine,
    caplog: pytest.LogCaptureFixture,
    how: Callable[[ScriptedEngine], AbstractAsyncContextManager[Client]],
    path: str,
) -> None:
    engine.answers[None] = ["a"]
    ends: list[tuple[bool, Step]] = [(False, End("!")), (True, End("!")), (True, EngineDeadError("died"))]
    async with how(engine) as api:
        for number, (stream, end) in enumerate(ends):
            async with vanishing(api.url, post_bytes(path, BODIES[path] | {"stream": stream})) as sock:
                request = await engine.spoken(number)
                if stream:
                    await asyncio.get_running_loop().sock_recv(sock, 1)
            request.say(end)
            await engine.until(lambda: engine.num_unfinished_requests == 0)
        scrape = await api.until(lambda scrape: scrape.value("ringpost:http_requests_total", handler=path) == 3)
        assert scrape.value("ringpost:http_requests_total", status="500") != 1
    assert not caplog.records


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
async def test_a_handler_that_is_not_cancelled_ends_when_it_can_send_no_more(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    engine.answers[None] = ["a"]
    async with mounted(engine) as api:
        async with vanishing(api.url, post_bytes(path, BODIES[path] | {"stream": True, "request_id": "r"})) as sock:
            request = await engine.spoken(0)
            await asyncio.get_running_loop().sock_recv(sock, 1)
        while not engine.aborted:
            request.say("b")
            await asyncio.sleep(0)
        assert engine.aborted == ["r"]
        await api.until(lambda scrape: scrape.value("ringpost:http_requests_total", handler=path, status="499") == 1)
    assert not caplog.records


@pytest.mark.asyncio
async def test_a_handler_that_is_not_cancelled_ends_when_no_more_of_the_body_comes(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with mounted(engine) as api:
        async with vanishing(api.url, post_bytes(COMPLETIONS, {"prompt": "hi"})[:-1]):
            pass
        await api.until(lambda scrape: scrape.value("ringpost:http_requests_total", status="499") == 1)
    assert engine.requests == []
    assert not caplog.records


def endless() -> list[Step]:
    return ["x" * 10_000] * 2_000  # more than any socket holds


@pytest.mark.asyncio
async def test_a_client_that_does_not_read_holds_nobody_up(no_leaks: None, api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers["much"] = endless()
    async with unread(api.url, COMPLETIONS, {"prompt": "much", "stream": True, "request_id": "r"}):
        stuck = await engine.nth_request(0)
        for path in PATHS:
            assert len((await api.call(path, BODIES[path] | {"stream": True})).events) >= 3
        assert stuck.unsaid, "the server has taken all of it, and keeps it"
        assert engine.num_unfinished_requests == 1
    await engine.until(lambda: engine.aborted == ["r"])
