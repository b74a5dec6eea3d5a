"""The listening socket: where it listens, how many may connect, and what does not speak HTTP."""

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from api_client import COMPLETIONS
from scripted_engine import End, ScriptedEngine
from served_app import AppClient, connection, post_bytes, served, serving, unread

from ringpost.actors.api import server
from ringpost.actors.api.app import build_app
from ringpost.actors.api.listening import bind
from ringpost.actors.api.server import HttpServer
from ringpost.ipc.messages.config import ApiConfig

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
IPV6 = "::1"


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers that go on when the server closes get less time than its users would give them."""
    monkeypatch.setattr(server, "_CLOSE_GRACE", 0.05)


async def health(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The first line of a reply, with which the connection stays open."""
    writer.write(HEALTH)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"Content-Length: 0\r\n" in head
    return head.partition(b"\r\n")[0]


@pytest.mark.asyncio
async def test_a_connection_too_many(no_leaks: None, engine: ScriptedEngine) -> None:
    async with served(engine, max_connections=2) as api, AsyncExitStack() as open_ones:
        first, second = [await open_ones.enter_async_context(connection(api.url)) for _ in range(2)]
        for each in (first, second):
            assert await health(*each) == b"HTTP/1.1 200 OK"
        for sent in (b"", HEALTH, post_bytes(COMPLETIONS, {"prompt": "x" * 100_000})):
            answer = await api.raw(sent)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"Retry-After: 1\r\n" in answer
            assert b"Connection: close\r\n" in answer
        assert (await api.call("/health", method="GET")).status == 503
        assert (await api.call(COMPLETIONS, {"prompt": "x" * 100_000})).status == 503
        assert await health(*first) == b"HTTP/1.1 200 OK"
        first[1].close()
        while (reply := await api.get("/health")).status == 503:
            pass
        assert reply.status == 200


@pytest.mark.asyncio
async def test_connections_made_at_once_are_counted_too(no_leaks: None, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["a"]
    async with served(engine, max_connections=3) as api:
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(api.call(COMPLETIONS, {"prompt": "hi"})) for _ in range(20)]
            done: set[asyncio.Task[object]] = set()
            while len(done) < 17:
                done |= (await asyncio.wait(set(calls) - done, return_when=asyncio.FIRST_COMPLETED))[0]
            await engine.nth_request(2)
            for request in engine.requests:
                request.say(End())
        assert sorted(call.result().status for call in calls) == [200] * 3 + [503] * 17


@pytest.mark.asyncio
async def test_a_slot_is_free_again_whatever_became_of_the_request(no_leaks: None, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["a"]
    async with served(engine, max_connections=1) as api:
        for number, (stream, reset) in enumerate(((False, False), (True, False), (False, True), (True, True))):
            async with api.sent(COMPLETIONS, {"prompt": "hi", "stream": stream}, reset=reset):
                await engine.nth_request(number)
            await engine.until(lambda: engine.num_unfinished_requests == 0)
            while (reply := await api.get("/health")).status == 503:
                pass
            assert reply.status == 200
            while (await api.get("/health")).status == 503:  # until that connection has gone
                pass


def test_a_port_in_use_is_named(no_leaks: None) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} of 127.0.0.1 cannot be used: Address already in use.*--port"):
            bind(ApiConfig(port=port))


@pytest.mark.asyncio
async def test_a_port_that_another_server_took_meanwhile_is_named(no_leaks: None, engine: ScriptedEngine) -> None:
    """Two may bind a port on which nobody listens; the second to listen fails."""
    app = build_app(engine)
    with bind(ApiConfig(port=0)) as first:
        config = ApiConfig(port=first.getsockname()[1])
        with bind(config) as second:
            async with HttpServer(app, config, first):
                with pytest.raises(ValueError, match=f"port {config.port} of 127.0.0.1 cannot be used"):
                    async with HttpServer(build_app(engine), config, second):
                        pass


@pytest.mark.parametrize("host", ["no.such.host.invalid", "999.1.1.1", "a" * 64, "..", "", "127.0.0.1:80", "a\u0000"])
def test_a_host_that_is_none_is_named(no_leaks: None, host: str) -> None:
    with pytest.raises(ValueError, match=r"^host '.*' cannot be used: "):
        bind(ApiConfig(host=host, port=0))


def test_an_address_of_another_machine(no_leaks: None) -> None:
    with pytest.raises(ValueError, match=r"192\.0\.2\.1 cannot be used"):
        bind(ApiConfig(host="192.0.2.1", port=0))


def has_ipv6() -> bool:
    try:
        bind(ApiConfig(host=IPV6, port=0)).close()
    except ValueError:
        return False
    return True


@pytest.mark.asyncio
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_an_ipv6_address(no_leaks: None, engine: ScriptedEngine) -> None:
    async with served(engine, host=IPV6) as api:
        assert api.url.startswith("http://[::1]:")
        assert (await api.get("/health")).status == 200


NO_HTTP = [
    b"nonsense\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,  # how TLS begins
    b"\x00" * 100 + b"\r\n\r\n",
    b"GET /health HTTP/9.9.9\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
]


@pytest.mark.asyncio
@pytest.mark.parametrize("sent", NO_HTTP, ids=lambda sent: repr(sent[:40]))
async def test_what_is_no_http(no_leaks: None, api: AppClient, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    assert (await api.raw(sent)).split(maxsplit=2)[1] == b"400"
    assert (await api.get("/health")).status == 200
    assert not caplog.records


@pytest.mark.asyncio
@pytest.mark.parametrize("chunks", [b"zz\r\nhello\r\n", b"5\r\nhello!!\r\n0\r\n\r\n", b"-1\r\n"])
async def test_chunks_that_are_none(no_leaks: None, api: AppClient, caplog: pytest.LogCaptureFixture, chunks: bytes) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await api.raw(head + chunks)).split(maxsplit=2)[1] == b"400"
    assert (await api.get("/health")).status == 200
    assert not caplog.records


@pytest.mark.asyncio
async def test_a_client_that_asks_first_whether_to_send(no_leaks: None, api: AppClient) -> None:
    request = post_bytes(COMPLETIONS, {"prompt": "hi"}, "Expect: 100-continue", "Connection: close")
    head, _, body = request.partition(b"\r\n\r\n")
    async with connection(api.url) as (reader, writer):
        writer.write(head + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.asyncio
@pytest.mark.usefixtures("short_grace")
async def test_leaving_the_block_ends_everything(no_leaks: None, engine: ScriptedEngine) -> None:
    """Idle connections are closed, and handlers that go on are cancelled."""
    engine.answers[None] = ["a"]
    async with AsyncExitStack() as open_ones:
        async with served(engine) as api:
            idle = await open_ones.enter_async_context(connection(api.url))
            await health(*idle)
            busy = await open_ones.enter_async_context(api.sent(COMPLETIONS, {"prompt": "hi", "stream": True}))
            await busy.readuntil(b"}\n\n")
        assert await idle[0].read() == b""
        assert b"[DONE]" not in await busy.read()
    await engine.until(lambda: engine.num_unfinished_requests == 0)
    with pytest.raises(ConnectionRefusedError):
        async with connection(api.url):
            pass


@pytest.mark.asyncio
@pytest.mark.usefixtures("short_grace")
async def test_leaving_the_block_waits_for_no_client_that_does_not_read(no_leaks: None, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["x" * 10_000] * 2_000  # more than any socket holds
    async with AsyncExitStack() as open_ones:
        async with served(engine) as api:
            await open_ones.enter_async_context(unread(api.url, COMPLETIONS, {"prompt": "hi", "stream": True}))
            request = await engine.nth_request(0)
        await engine.until(lambda: engine.num_unfinished_requests == 0)
        assert request.unsaid


@pytest.mark.asyncio
async def test_an_application_inside_another(no_leaks: None, engine: ScriptedEngine) -> None:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    root = web.Application()
    root.add_routes([web.get("/hello", hello)])
    config = ApiConfig(port=0, api_key="k", served_model_name=("m",))
    root.add_subapp("/llm/", build_app(engine, config))
    key = {"Authorization": "Bearer k"}
    async with serving(root, config) as api:
        assert (await api.get("/hello")).body == b"hello"
        assert (await api.call("/llm/v1/completions", {"prompt": "hi"}, key)).json["choices"][0]["text"] == "Hello!"
        assert (await api.call("/llm/v1/completions", {"prompt": "hi"})).error["code"] == "invalid_api_key"
        stream = await api.call(
            "/llm/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "stream": True}, key
        )
        assert len(stream.events) == 4
        assert (await api.get("/llm/health")).status == 200
        assert (await api.get("/llm/nope")).error["type"] == "invalid_request_error"
        wrong = await api.call("/llm/v1/completions", headers=key, method="GET")
        assert (wrong.status, wrong.headers["Allow"]) == (405, "POST")
        assert (await api.get("/health")).status == 404
        metrics = (await api.get("/llm/metrics")).body.decode()
    assert 'handler="/llm/v1/completions",method="POST",status="200"' in metrics


@pytest.mark.asyncio
async def test_the_names_and_the_key_are_the_engines_unless_given(no_leaks: None, tiny: str) -> None:
    engine = ScriptedEngine(tiny, served_model_name=("x",), api_key="k")
    async with serving(build_app(engine), ApiConfig(port=0)) as api:
        assert (await api.get("/v1/models")).status == 401
        listed = await api.get("/v1/models", {"Authorization": "Bearer k"})
        assert [card["id"] for card in listed.json["data"]] == ["x"]
    engine = ScriptedEngine(tiny)
    async with serving(build_app(engine), ApiConfig(port=0)) as api:
        assert [card["id"] for card in (await api.get("/v1/models")).json["data"]] == [tiny]
