"""Answers as they leave the server, byte by byte."""

import asyncio
import json
from typing import Any

import pytest
from api_client import CHAT, COMPLETIONS, Json
from scripted_engine import End, ScriptedEngine, token_ids
from served_app import AppClient, Reply, connection, post_bytes
from tiny_checkpoint import EOS_TOKEN_ID

from ringpost.actors.errors import EngineDeadError
from ringpost.ipc.messages.errors import ParameterError

BODIES: dict[str, Json] = {COMPLETIONS: {"prompt": "hi"}, CHAT: {"messages": [{"role": "user", "content": "hi"}]}}
PATHS = list(BODIES)
DETAILS = {"prompt_tokens_details": {"cached_tokens": 0}}


async def streamed(api: AppClient, path: str, **fields: Any) -> Reply:
    return await api.call(path, BODIES[path] | {"stream": True} | fields, {"X-Request-Id": "r"})


async def next_event(reader: asyncio.StreamReader) -> Json:
    event: Json = json.loads((await reader.readuntil(b"}\n\n")).partition(b"data: ")[2])
    return event


def usage(prompt: int, completion: int) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion} | DETAILS


def without(event: Json, *keys: str) -> Json:
    return {key: value for key, value in event.items() if key not in keys}


@pytest.mark.asyncio
async def test_the_bytes_of_a_completion(api: AppClient) -> None:
    reply = await streamed(api, COMPLETIONS)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["Cache-Control"] == "no-cache"
    assert reply.headers["X-Request-Id"] == "r"
    start = f'data: {{"id":"cmpl-r","object":"text_completion","created":{reply.events[0]["created"]},"model":"m",'
    choices = [
        '"choices":[{"index":0,"text":"Hel","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n',
        '"choices":[{"index":0,"text":"lo","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n',
        '"choices":[{"index":0,"text":"!","logprobs":null,"finish_reason":"length","stop_reason":null}]}\n\n',
    ]
    assert reply.body.decode() == "".join(start + choice for choice in choices) + "data: [DONE]\n\n"


@pytest.mark.asyncio
async def test_the_bytes_of_a_chat(api: AppClient) -> None:
    reply = await streamed(api, CHAT)
    start = f'data: {{"id":"chatcmpl-r","object":"chat.completion.chunk","created":{reply.events[0]["created"]},"model":"m",'
    middle = ',"logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
    choices = [
        '"choices":[{"index":0,"delta":{"role":"assistant","content":""}' + middle,
        '"choices":[{"index":0,"delta":{"content":"Hel"}' + middle,
        '"choices":[{"index":0,"delta":{"content":"lo"}' + middle,
        '"choices":[{"index":0,"delta":{"content":"!"},"logprobs":null,"finish_reason":"length","stop_reason":null}]}\n\n',
    ]
    assert reply.body.decode() == "".join(start + choice for choice in choices) + "data: [DONE]\n\n"


@pytest.mark.asyncio
async def test_an_end_without_text(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["a", End("", "stop")]
    last = (await streamed(api, COMPLETIONS)).events[-1]["choices"][0]
    assert (last["text"], last["finish_reason"], last["stop_reason"]) == ("", "stop", None)
    last = (await streamed(api, CHAT)).events[-1]["choices"][0]
    assert (last["delta"], last["finish_reason"]) == ({}, "stop")
    engine.answers[None] = [End("", "stop", token_ids("x")[0])]
    for path in PATHS:
        last = (await streamed(api, path)).events[-1]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", token_ids("x")[0])


@pytest.mark.asyncio
async def test_a_newline_stays_inside_its_event(api: AppClient, engine: ScriptedEngine) -> None:
    text = "\n\n\r\u2028\u0085"
    engine.answers[None] = [text, End(text)]
    for path in PATHS:
        reply = await streamed(api, path)
        choices = [event["choices"][0] for event in reply.events]
        assert "".join(choice.get("text", "") + choice.get("delta", {}).get("content", "") for choice in choices) == text * 2
        assert reply.body.count(b"\n\n") == len(reply.events) + 1
        assert b"\r" not in reply.body


@pytest.mark.asyncio
async def test_two_prompts(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers |= {"cat": ["a", "b", End("c")], "dog": [End("x", "stop")]}
    reply = await streamed(api, COMPLETIONS, prompt=["cat", "dog"], stream_options={"include_usage": True})
    *events, last = reply.events
    choices = [event["choices"][0] for event in events]
    said = {index: [choice["text"] for choice in choices if choice["index"] == index] for index in (0, 1)}
    assert said == {0: ["a", "b", "c"], 1: ["x"]}
    ends = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}
    assert ends == {0: "length", 1: "stop"}
    assert {event["id"] for event in reply.events} == {"cmpl-r"}
    assert last["choices"] == []
    assert last["usage"] == usage(3 + 3, 3 + 2)
    assert [request.message.external_id for request in engine.requests] == ["r-0", "r-1"]


@pytest.mark.asyncio
async def test_streams_of_several_prompts_come_side_by_side(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = []
    async with api.sent(COMPLETIONS, {"prompt": ["cat", "dog"], "stream": True}) as reader:
        await engine.nth_request(1)
        for index, text in ((1, "b"), (0, "a"), (1, "d")):
            engine.requests[index].say(text)
            event = await next_event(reader)
            assert [(choice["index"], choice["text"]) for choice in event["choices"]] == [(index, text)]


@pytest.mark.asyncio
async def test_several_choices(api: AppClient, engine: ScriptedEngine) -> None:
    """A prompt counts once in the usage, and each choice has a role, an end and a seed of its own."""
    options = {"include_usage": True}
    *events, last = (await streamed(api, COMPLETIONS, prompt=["cat", "dog"], n=2, seed=5, stream_options=options)).events
    assert {event["choices"][0]["index"]: event["choices"][0]["finish_reason"] for event in events} == dict.fromkeys(
        range(4), "length"
    )
    assert last["usage"] == usage(3 + 3, 4 * 6)
    messages = [request.message for request in engine.requests]
    assert [(one.params.seed, [sibling.seed for sibling in one.siblings]) for one in messages] == [(5, [6]), (5, [6])]
    assert [(one.prompt, one.external_id) for one in messages] == [(token_ids("cat"), "r-0"), (token_ids("dog"), "r-1")]
    body = (await api.call(COMPLETIONS, {"prompt": ["cat", "dog"], "n": 2})).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"] == last["usage"]

    *events, last = (await streamed(api, CHAT, n=2, stream_options=options)).events
    prompt = len(engine.requests[-1].message.prompt)
    assert last["usage"] == usage(prompt, 2 * 6)
    for index in (0, 1):
        first, *rest = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in rest)
        assert [choice["finish_reason"] for choice in rest] == [None, None, "length"]


@pytest.mark.asyncio
async def test_the_same_answer_whole(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers |= {"cat": ["a", "b", End("c")], "dog": [End("x", "stop")]}
    body = (await api.call(COMPLETIONS, {"prompt": ["cat", "dog"]}, {"X-Request-Id": "r"})).json
    assert without(body, "created", "choices") == {
        "id": "cmpl-r",
        "object": "text_completion",
        "model": "m",
        "usage": usage(6, 5),
    }
    common = {"logprobs": None, "stop_reason": None}
    assert body["choices"] == [
        {"index": 0, "text": "abc", "finish_reason": "length"} | common,
        {"index": 1, "text": "x", "finish_reason": "stop"} | common,
    ]
    engine.answers[None] = ["a", "b", End("c")]
    body = (await api.call(CHAT, BODIES[CHAT], {"X-Request-Id": "r"})).json
    prompt = len(engine.requests[-1].message.prompt)
    assert without(body, "created") == {
        "id": "chatcmpl-r",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "abc"}, "finish_reason": "length"} | common],
        "usage": usage(prompt, 3),
    }


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
async def test_usage_only_where_it_is_asked_for(api: AppClient, engine: ScriptedEngine, path: str) -> None:
    for options in (None, {}, {"include_usage": False}, {"continuous_usage_stats": True}, {"include_usage": None}):
        events = (await streamed(api, path, stream_options=options)).events
        assert all("usage" not in event for event in events)

    *events, last = (await streamed(api, path, stream_options={"include_usage": True})).events
    prompt = len(engine.requests[-1].message.prompt)
    assert all(event["usage"] is None for event in events)
    assert (last["choices"], last["usage"]) == ([], usage(prompt, 6))
    assert last["usage"] == (await api.call(path, BODIES[path])).json["usage"]

    everywhere = {"include_usage": True, "continuous_usage_stats": True}
    *events, last = (await streamed(api, path, stream_options=everywhere)).events
    assert [event["usage"]["completion_tokens"] for event in events] == ([3, 3, 5, 6] if path == CHAT else [3, 5, 6])
    assert last["usage"] == usage(prompt, 6)


@pytest.mark.asyncio
async def test_usage_so_far_is_that_of_its_choice(api: AppClient, engine: ScriptedEngine) -> None:
    """Only the event at the end counts all of them."""
    engine.answers[None] = []
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with api.sent(COMPLETIONS, {"prompt": ["cat", "dogs"], "stream": True, "stream_options": options}) as reader:
        await engine.nth_request(1)
        for index, step, expected in (
            (0, "a", usage(3, 1)),
            (1, "a", usage(4, 1)),
            (0, "ab", usage(3, 3)),
            (1, End(), usage(4, 1)),
            (0, End("c"), usage(3, 4)),
        ):
            engine.requests[index].say(step)
            assert (await next_event(reader))["usage"] == expected
        last = await next_event(reader)
        assert (last["choices"], last["usage"]) == ([], usage(3 + 4, 4 + 1))


@pytest.mark.asyncio
async def test_token_ids_of_a_completion(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers |= {"cat": ["a", "b", End("c", "stop")]}
    expected = [token_ids("a"), token_ids("b"), [*token_ids("c"), EOS_TOKEN_ID]]
    events = (await streamed(api, COMPLETIONS, prompt="cat", return_token_ids=True)).events
    choices = [event["choices"][0] for event in events]
    assert [choice["token_ids"] for choice in choices] == expected
    assert choices[0]["prompt_token_ids"] == token_ids("cat")
    assert all("prompt_token_ids" not in choice for choice in choices[1:])
    assert all("prompt_token_ids" not in event for event in events)

    body = (await api.call(COMPLETIONS, {"prompt": ["cat", "cat"], "return_token_ids": True})).json
    for choice in body["choices"]:
        assert choice["token_ids"] == [*token_ids("abc"), EOS_TOKEN_ID]
        assert choice["prompt_token_ids"] == token_ids("cat")


@pytest.mark.asyncio
async def test_token_ids_of_a_chat(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["a", End("b")]
    first, *events = (await streamed(api, CHAT, return_token_ids=True)).events
    prompt = engine.requests[-1].message.prompt
    assert first["prompt_token_ids"] == prompt
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "token_ids" not in first["choices"][0]
    assert [event["choices"][0]["token_ids"] for event in events] == [token_ids("a"), token_ids("b")]
    assert all("prompt_token_ids" not in event for event in events)

    body = (await api.call(CHAT, BODIES[CHAT] | {"return_token_ids": True})).json
    assert body["prompt_token_ids"] == prompt
    assert body["choices"][0]["token_ids"] == token_ids("ab")


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
async def test_no_token_ids_unless_asked_for(api: AppClient, path: str) -> None:
    for fields in ({}, {"return_token_ids": False}, {"return_token_ids": None}):
        assert b"token_ids" not in (await streamed(api, path, **fields)).body
        assert b"token_ids" not in (await api.call(path, BODIES[path] | fields)).body


@pytest.mark.asyncio
async def test_half_a_character_makes_no_event(api: AppClient, engine: ScriptedEngine) -> None:
    """Unless its tokens are wanted, or the usage so far."""
    heart = "\N{HEAVY BLACK HEART}".encode()
    engine.answers[None] = [heart[:1], heart[1:2], heart[2:], End()]
    texts = [event["choices"][0]["text"] for event in (await streamed(api, COMPLETIONS)).events]
    assert texts == [heart.decode(), ""]
    deltas = [event["choices"][0]["delta"] for event in (await streamed(api, CHAT)).events]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": heart.decode()}, {}]

    everywhere = {"include_usage": True, "continuous_usage_stats": True}
    for fields in ({"return_token_ids": True}, {"stream_options": everywhere}):
        events = [event for event in (await streamed(api, COMPLETIONS, **fields)).events if event["choices"]]
        assert [event["choices"][0]["text"] for event in events] == ["", "", heart.decode(), ""]
    ids = [event["choices"][0]["token_ids"] for event in (await streamed(api, COMPLETIONS, return_token_ids=True)).events]
    assert ids == [token_ids(heart[:1]), token_ids(heart[1:2]), token_ids(heart[2:]), []]


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
async def test_an_error_in_the_middle_is_the_last_event(api: AppClient, engine: ScriptedEngine, path: str) -> None:
    engine.answers[None] = ["a", EngineDeadError("worker0.0 died")]
    reply = await streamed(api, path, stream_options={"include_usage": True})
    *events, last = reply.events
    assert last == {
        "error": {
            "message": "worker0.0 died",
            "type": "service_unavailable_error",
            "param": None,
            "code": "engine_dead",
        }
    }
    assert len(events) == (2 if path == CHAT else 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fault", [ParameterError("it does not fit", "prompt"), ValueError("secret"), RuntimeError("secret")])
async def test_an_error_before_the_first_token(api: AppClient, engine: ScriptedEngine, path: str, fault: Exception) -> None:
    engine.answers[None] = [fault]
    (event,) = (await streamed(api, path)).events
    ours = not isinstance(fault, ParameterError)
    assert event["error"]["type"] == ("server_error" if ours else "invalid_request_error")
    assert "secret" not in event["error"]["message"]


@pytest.mark.asyncio
async def test_one_failed_prompt_ends_the_stream_of_all(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers |= {"cat": ["a"], "dog": ["b", EngineDeadError("died")]}
    events = (await streamed(api, COMPLETIONS, prompt=["cat", "dog"])).events
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["a", "b"]
    assert events[-1]["error"]["code"] == "engine_dead"
    assert engine.aborted == ["r-0"]


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
async def test_a_shutdown_ends_streams_with_an_error(api: AppClient, engine: ScriptedEngine, path: str) -> None:
    engine.answers[None] = ["a"]
    async with asyncio.TaskGroup() as tasks:
        stream = tasks.create_task(streamed(api, path))
        await engine.nth_request(0)
        engine.shutdown()
    *_, last = stream.result().events
    assert last["error"]["code"] == "shutting_down"
    assert "shut down" in last["error"]["message"]


@pytest.mark.asyncio
async def test_two_calls_on_one_connection(api: AppClient) -> None:
    body = {"prompt": "hi", "stream": True}
    first, second = post_bytes(COMPLETIONS, body), post_bytes(COMPLETIONS, body, "Connection: close")
    for together in (True, False):
        async with connection(api.url) as (reader, writer):
            writer.write(first + second if together else first)
            answer = await reader.readuntil(b"0\r\n\r\n")
            if not together:
                writer.write(second)
            answer += await reader.read()
        assert answer.count(b"HTTP/1.1 200 OK") == answer.count(b"data: [DONE]") == 2
