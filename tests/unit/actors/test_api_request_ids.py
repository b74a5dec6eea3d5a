"""The client's name for its call: where it comes from, where it goes, and that it need not be unique."""

import asyncio

import pytest
from api_client import CHAT, COMPLETIONS, Json
from scripted_engine import End, ScriptedEngine
from served_app import AppClient

BODIES: dict[str, Json] = {COMPLETIONS: {"prompt": "hi"}, CHAT: {"messages": [{"role": "user", "content": "hi"}]}}
PATHS = list(BODIES)


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
async def test_where_an_id_comes_from(api: AppClient, engine: ScriptedEngine, path: str) -> None:
    prefix = "cmpl-" if path == COMPLETIONS else "chatcmpl-"
    for header, field, expected in (
        ("h", "b", "h"),
        ("h", None, "h"),
        (None, "b", "b"),
        ("ü h", None, "ü h"),
        ("x" * 256, None, "x" * 256),
    ):
        headers = {} if header is None else {"X-Request-Id": header}
        for stream in (False, True):
            reply = await api.call(path, BODIES[path] | {"request_id": field, "stream": stream}, headers)
            (found,) = {event["id"] for event in (reply.events if stream else [reply.json])}
            assert found == prefix + expected
            assert reply.headers["X-Request-Id"] == expected
            assert engine.requests[-1].message.external_id == expected
    random = {(await api.call(path, BODIES[path])).json["id"] for _ in range(3)}
    assert len(random) == 3
    assert all(name.startswith(prefix) and len(name) > len(prefix) + 20 for name in random)


UNUSABLE = ["", "x" * 257, "a\tb", "a\u200bb"]


@pytest.mark.asyncio
@pytest.mark.parametrize("header", UNUSABLE)
async def test_a_header_that_cannot_be_an_id_counts_as_none(api: AppClient, engine: ScriptedEngine, header: str) -> None:
    for path in PATHS:
        reply = await api.call(path, BODIES[path] | {"request_id": "good"}, {"X-Request-Id": header})
        assert reply.headers["X-Request-Id"] == engine.requests[-1].message.external_id == "good"
        reply = await api.call(path, BODIES[path], {"X-Request-Id": header})
        assert len(reply.headers["X-Request-Id"]) == 32
        assert reply.headers["X-Request-Id"] == engine.requests[-1].message.external_id
        refused = await api.call(path, b"{}", {"X-Request-Id": header})
        assert refused.status == 400
        assert "X-Request-Id" not in refused.headers


@pytest.mark.asyncio
@pytest.mark.parametrize("field", UNUSABLE)
async def test_a_field_that_cannot_be_an_id_is_refused(api: AppClient, engine: ScriptedEngine, field: str) -> None:
    for path in PATHS:
        error = await api.refused(path, BODIES[path] | {"request_id": field})
        assert error["param"] == "request_id"
        assert "256" in error["message"]
    assert engine.requests == []


@pytest.mark.asyncio
@pytest.mark.parametrize("header", ["h", "\xfc h", "x" * 256])
async def test_a_refusal_carries_the_id_of_the_header(api: AppClient, engine: ScriptedEngine, header: str) -> None:
    engine.refusal = RuntimeError("a fault")
    for path, body, method, status in (
        (COMPLETIONS, b"{}", "POST", 400),
        (CHAT, BODIES[CHAT] | {"model": "other"}, "POST", 404),
        (COMPLETIONS, BODIES[COMPLETIONS], "POST", 500),
        ("/nope", None, "GET", 404),
    ):
        reply = await api.call(path, body, {"X-Request-Id": header}, method)
        assert reply.status == status
        assert reply.headers["X-Request-Id"] == header


@pytest.mark.asyncio
async def test_one_id_for_two_calls_at_once(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers |= {"cat": ["a"], "dog": ["b"]}
    async with asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(api.call(COMPLETIONS, {"prompt": text}, {"X-Request-Id": "r"})) for text in ("cat", "dog")]
        for request in [await engine.spoken(number) for number in (0, 1)]:
            request.say(End())
    assert [call.result().json["choices"][0]["text"] for call in calls] == ["a", "b"]
