"""Connections to /v1/realtime: who may open one, and how each comes to its end."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import WSCloseCode, WSMsgType
from api_client import COMPLETIONS
from realtime_client import REALTIME, RealtimeClient, connected, text_of
from scripted_engine import End, ScriptedEngine
from served_app import AppClient, served

from ringpost.actors.api import realtime_socket
from ringpost.actors.api.app import gate_of
from ringpost.actors.errors import EngineGenerateError

KEY = "sk-key"
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


@pytest_asyncio.fixture
async def chat(api: AppClient) -> AsyncIterator[RealtimeClient]:
    """A connection."""
    async with connected(api.url) as client:
        yield client


async def begin(chat: RealtimeClient, engine: ScriptedEngine) -> None:
    """Have a response begin that stays without an end."""
    engine.answers[None] = ["a"]
    await chat.say("hi")
    await chat.send("response.create")
    await chat.until("response.output_text.delta")


async def left(engine: ScriptedEngine) -> None:
    """Wait until nothing is left of any session."""
    await engine.until(lambda: not len(engine.sessions))
    assert engine.num_unfinished_requests == 0


@pytest.mark.asyncio
async def test_a_session_is_told_how_it_is_set(api: AppClient) -> None:
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{api.url}{REALTIME}?model=alias") as socket:
        event = await socket.receive_json()
    session = event.pop("session")
    assert event.keys() == {"type", "event_id"}
    assert session.pop("id").startswith("sess_")
    assert session == {
        "type": "realtime",
        "object": "realtime.session",
        "model": "alias",
        "mode": "chat",
        "instructions": "",
        "max_output_tokens": "inf",
        "output_modalities": ["text"],
    }


REFUSED: list[tuple[str, dict[str, str], int, str]] = [
    ("?model=gpt", UPGRADE, 404, "gpt"),
    ("?mode=song", UPGRADE, 400, "song"),
    ("", {}, 426, "WebSocket"),
    ("", UPGRADE | {"Sec-WebSocket-Key": "x"}, 426, "WebSocket"),
    ("", UPGRADE | {"Sec-WebSocket-Protocol": f"chat, openai-insecure-api-key.{KEY}"}, 400, "realtime"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("query", "headers", "status", "says"), REFUSED)
async def test_what_cannot_be_opened_is_a_status(
    api: AppClient,
    engine: ScriptedEngine,
    caplog: pytest.LogCaptureFixture,
    query: str,
    headers: dict[str, str],
    status: int,
    says: str,
) -> None:
    reply = await api.get(REALTIME + query, headers)
    assert (reply.status, says in reply.error["message"]) == (status, True)
    assert len(engine.sessions) == 0
    assert KEY not in caplog.text


@pytest.mark.asyncio
async def test_an_engine_that_takes_no_session(tiny: str) -> None:
    engine = ScriptedEngine(tiny, max_sessions=1)
    async with served(engine) as api:
        async with connected(api.url):
            reply = await api.get(REALTIME, UPGRADE)
            assert (reply.status, reply.error["code"]) == (503, "too_many_sessions")
        await left(engine)
        gate_of(api.app).close()
        assert (await api.get(REALTIME, UPGRADE)).error["code"] == "shutting_down"
    async with served(ScriptedEngine(tiny, skip_tokenizer_init=True)) as api:
        reply = await api.get(REALTIME, UPGRADE)
        assert (reply.status, "no tokenizer" in reply.error["message"]) == (400, True)
    engine = ScriptedEngine(tiny)
    engine.die()
    async with served(engine) as api:
        assert (await api.get(REALTIME, UPGRADE)).error["code"] == "engine_dead"


@pytest.mark.asyncio
async def test_the_key_in_a_header_or_among_the_subprotocols(tiny: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(ScriptedEngine(tiny), api_key=KEY) as api:
        ways: list[dict[str, Any]] = [
            {"headers": {"Authorization": f"Bearer {KEY}"}},
            {"protocols": ["realtime", f"openai-insecure-api-key.{KEY}", "openai-beta.realtime-v1"]},
        ]
        for way in ways:
            async with connected(api.url, **way) as client:
                assert client.socket.protocol == ("realtime" if "protocols" in way else None)
        for headers in (
            {},
            {"Authorization": "Bearer x"},
            {"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key.x"},
            {"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key."},
            {"Authorization": "Bearer x", "Sec-WebSocket-Protocol": f"realtime, openai-insecure-api-key.{KEY}"},
        ):
            assert (await api.get(REALTIME, UPGRADE | headers)).status == 401
    assert KEY not in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["close", "abort"])
@pytest.mark.parametrize("answering", [False, True])
async def test_a_client_that_leaves_frees_everything(
    no_leaks: None, api: AppClient, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture, how: str, answering: bool
) -> None:
    async with connected(api.url) as client:
        await client.send("input_text_buffer.append", text="hi")
        if answering:
            await begin(client, engine)
        if how == "abort":
            transport = client.socket._conn.transport  # type: ignore[union-attr]
            assert transport is not None
            transport.abort()
            await left(engine)
    await left(engine)
    await api.until(lambda scrape: scrape.value("ringpost:http_realtime_connections") == 0)
    assert not caplog.records


@pytest.mark.asyncio
async def test_a_connection_counts_when_it_is_opened(api: AppClient, chat: RealtimeClient) -> None:
    scrape = await api.metrics()
    assert scrape.value("ringpost:http_realtime_connections") == 1
    counts = {"method": "GET", "handler": REALTIME}
    assert scrape.value("ringpost:http_requests_total", status="101", **counts) == 1
    await chat.socket.close()
    scrape = await api.until(lambda scrape: scrape.value("ringpost:http_realtime_connections") == 0)
    assert scrape.value("ringpost:http_requests_total", **counts) == 1
    assert scrape.value("ringpost:http_request_duration_seconds_count", **counts) == 1


@pytest.mark.asyncio
async def test_a_message_has_an_end(api: AppClient, engine: ScriptedEngine, chat: RealtimeClient) -> None:
    frame = json.dumps({"type": "input_text_buffer.append", "text": ""})
    text = "x" * (realtime_socket.MAX_MESSAGE - len(frame))
    await chat.send("input_text_buffer.append", text=text)
    await chat.send("input_text_buffer.clear")
    await chat.next("input_text_buffer.cleared")
    await chat.send("input_text_buffer.append", text=text + "x")
    assert await chat.closed() == WSCloseCode.MESSAGE_TOO_BIG
    await left(engine)


@pytest.mark.asyncio
async def test_text_that_is_no_text(chat: RealtimeClient, engine: ScriptedEngine) -> None:
    await chat.socket.send_frame(b"\xff", WSMsgType.TEXT)
    assert await chat.closed() == WSCloseCode.INVALID_TEXT
    await left(engine)


@pytest.mark.asyncio
async def test_silence_ends_a_session(tiny: str) -> None:
    engine = ScriptedEngine(tiny, session_idle_timeout=0.5)
    async with served(engine) as api, connected(api.url) as client:
        error = (await client.next("error"))["error"]
        assert (error["code"], error["event_id"]) == ("session_timeout", None)
        assert client.session["id"] in error["message"]
        assert await client.closed() == WSCloseCode.GOING_AWAY
        await left(engine)


@pytest.mark.asyncio
async def test_a_response_that_is_prepared_for_long_is_no_silence(tiny: str) -> None:
    engine = ScriptedEngine(tiny, session_idle_timeout=1.0)
    async with served(engine) as api, connected(api.url) as client:
        engine.may_render.clear()
        await client.say("hi")
        await client.send("response.create")
        await engine.until(lambda: engine.rendering > 0)
        async with connected(api.url) as silent:  # for as long, and from a later moment on
            assert (await silent.next("error"))["error"]["code"] == "session_timeout"
        engine.may_render.set()
        assert text_of((await client.until("response.done"))[-1]["response"]) == "Hello!"


@pytest.mark.asyncio
async def test_input_that_is_no_item_yet_is_no_silence(tiny: str) -> None:
    engine = ScriptedEngine(tiny, session_idle_timeout=0.5)
    async with served(engine) as api, connected(api.url) as client:
        loop = asyncio.get_running_loop()
        end = loop.time() + 1
        while loop.time() < end:
            await client.send("input_text_buffer.append", text="a")
            await client.ask("input_text_buffer.clear")
        assert (await client.next("error"))["error"]["code"] == "session_timeout"


@pytest.mark.asyncio
async def test_an_idle_connection_ends_when_the_server_stops(
    api: AppClient, engine: ScriptedEngine, chat: RealtimeClient
) -> None:
    gate = gate_of(api.app)
    gate.close()
    assert (await chat.next("error"))["error"]["code"] == "shutting_down"
    assert await chat.closed() == WSCloseCode.GOING_AWAY
    await gate.wait_empty()
    assert len(engine.sessions) == 0


@pytest.mark.asyncio
async def test_a_response_is_finished_when_the_server_stops(
    api: AppClient, engine: ScriptedEngine, chat: RealtimeClient
) -> None:
    await begin(chat, engine)
    gate = gate_of(api.app)
    gate.close()
    assert (await chat.ask("response.create"))["error"]["code"] == "conversation_already_has_active_response"
    assert gate.inside == 1
    engine.requests[0].say(End("b", "stop"))
    assert (await chat.until("response.done"))[-1]["response"]["status"] == "completed"
    assert (await chat.next("error"))["error"]["code"] == "shutting_down"
    assert await chat.closed() == WSCloseCode.GOING_AWAY
    await gate.wait_empty()


@pytest.mark.asyncio
@pytest.mark.parametrize("stopping", [False, True])
async def test_an_engine_that_ends_takes_its_sessions_along(
    api: AppClient, engine: ScriptedEngine, chat: RealtimeClient, stopping: bool
) -> None:
    await begin(chat, engine)
    if stopping:
        gate_of(api.app).close()
        engine.shutdown()
    else:
        engine.die()
    response = (await chat.until("response.done"))[-1]["response"]
    error = (await chat.next("error"))["error"]
    code = "shutting_down" if stopping else "engine_dead"
    assert (response["status"], response["status_details"]["error"]["code"], error["code"]) == ("failed", code, code)
    assert response["output"][0]["content"][0]["text"] == "a"
    assert await chat.closed() == (WSCloseCode.GOING_AWAY if stopping else WSCloseCode.INTERNAL_ERROR)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["fails", "is aborted"])
async def test_a_turn_that_fails_ends_its_session_alone(
    api: AppClient, engine: ScriptedEngine, chat: RealtimeClient, how: str
) -> None:
    async with connected(api.url) as other:
        await begin(chat, engine)
        if how == "fails":
            engine.requests[0].say(EngineGenerateError("worker0.0: NaN"))
        else:
            engine.sessions.abort({engine.requests[0].message.external_id})
        response = (await chat.until("response.done"))[-1]["response"]
        assert (response["status"], response["usage"]["output_tokens"]) == ("failed", 1)
        assert (await chat.next("error"))["error"]["type"] == "server_error"
        assert await chat.closed() == WSCloseCode.INTERNAL_ERROR
        engine.answers[None] = [End("b", "stop")]
        await other.say("hi")
        assert (await other.respond())["status"] == "completed"


@pytest.mark.asyncio
async def test_a_client_that_does_not_read_is_dropped(
    no_leaks: None, api: AppClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realtime_socket, "SEND_SECONDS", 0.5)
    monkeypatch.setattr(realtime_socket, "CLOSE_SECONDS", 0.2)
    async with connected(api.url) as client:
        item_id = await client.say("x" * 500_000)
        transport = client.socket._conn.transport  # type: ignore[union-attr]
        assert transport is not None
        transport.pause_reading()
        for _ in range(50):  # more than any socket holds
            await client.send("conversation.item.retrieve", item_id=item_id)
        await engine.until(lambda: not len(engine.sessions))
        assert (await api.call(COMPLETIONS, {"prompt": "hi"})).status == 200
        await api.until(lambda scrape: scrape.value("ringpost:http_realtime_connections") == 0)
        transport.abort()


@pytest.mark.asyncio
async def test_a_client_that_answers_no_ping_is_dropped(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime_socket, "HEARTBEAT", 0.2)
    engine = ScriptedEngine(tiny)
    async with served(engine) as api, connected(api.url, autoping=False):
        await left(engine)


@pytest.mark.asyncio
async def test_no_text_of_a_client_is_logged(api: AppClient, chat: RealtimeClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await chat.say("secret")
    await chat.respond()
    await chat.refused("conversation.item.create", item="secret")
    await chat.socket.close()
    await api.until(lambda scrape: scrape.value("ringpost:http_realtime_connections") == 0)
    assert "secret" not in caplog.text
