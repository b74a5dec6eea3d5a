"""What is wrong with events of a realtime client: each gets an error event, and the connection goes on."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from api_client import Json
from realtime_client import RealtimeClient, connected, text_of
from scripted_engine import End, ScriptedEngine
from served_app import AppClient, served

PART = {"type": "input_text", "text": "a"}
ITEM = {"type": "message", "role": "user", "content": [PART]}


@pytest_asyncio.fixture
async def chat(api: AppClient) -> AsyncIterator[RealtimeClient]:
    """A connection, which still answers at the end."""
    async with connected(api.url) as client:
        yield client
        await client.say("hi")
        assert (await client.respond())["output"]


CODES = {"invalid_value", "unknown_parameter", "item_not_found", "model_not_found", "response_cancel_not_active"}
WRONG_FIELDS: list[tuple[str, Json, str, str]] = [
    ("session.update", {}, "session", "required"),
    ("session.update", {"session": 5}, "session", "an object, got 5"),
    ("session.update", {"session": {"type": "transcription"}}, "session.type", '"realtime"'),
    ("session.update", {"session": {"temperature": "x"}}, "session.temperature", 'a number or null, got "x"'),
    ("session.update", {"session": {"temperature": -1}}, "session.temperature", "got -1"),
    ("session.update", {"session": {"top_k": -7}}, "session.top_k", "got -7"),
    ("session.update", {"session": {"logit_bias": {"99999": 1}}}, "session.logit_bias", "99999"),
    ("session.update", {"session": {"vllm_xargs": 5}}, "session.vllm_xargs", "got 5"),
    ("session.update", {"session": {"max_output_tokens": 0}}, "session.max_output_tokens", "got 0"),
    ("session.update", {"session": {"max_output_tokens": "all"}}, "session.max_output_tokens", '"inf"'),
    ("session.update", {"session": {"output_modalities": ["audio"]}}, "session.output_modalities", '["text"]'),
    ("session.update", {"session": {"tools": [{}]}}, "session.tools", "not supported"),
    ("session.update", {"session": {"tool_choice": "required"}}, "session.tool_choice", "not supported"),
    ("session.update", {"session": {"truncation": "auto"}}, "session.truncation", '"disabled"'),
    ("session.update", {"session": {"mode": "song"}}, "session.mode", '"chat" or "text"'),
    ("session.update", {"session": {"voice": "ash"}}, "session.voice", "not known"),
    ("session.update", {"session": {"model": "gpt"}}, "session.model", "'gpt' is not served here; there is m, alias"),
    ("session.update", {"session": {"model": ""}}, "session.model", "'' is not served here"),
    ("session.update", {"session": {}, "more": 1}, "more", "not known"),
    ("conversation.item.create", {}, "item", "required"),
    ("conversation.item.create", {"item": {**ITEM, "type": "function_call"}}, "item.type", '"message"'),
    ("conversation.item.create", {"item": {**ITEM, "role": "tool"}}, "item.role", "user, system, assistant"),
    ("conversation.item.create", {"item": {**ITEM, "content": []}}, "item.content", "at least one"),
    (
        "conversation.item.create",
        {"item": {**ITEM, "content": [{"type": "input_audio"}]}},
        "item.content[0].type",
        "input_text",
    ),
    ("conversation.item.create", {"item": {**ITEM, "content": [PART, {"type": "text"}]}}, "item.content[1].text", "required"),
    ("conversation.item.create", {"item": {**ITEM, "id": ""}}, "item.id", "length"),
    ("conversation.item.create", {"item": ITEM, "previous_item_id": "x"}, "previous_item_id", "got 'x'"),
    ("conversation.item.truncate", {"item_id": "x", "content_index": 0}, "text_end", "required"),
    ("conversation.item.truncate", {"item_id": "x", "content_index": 0, "text_end": 1}, "item_id", "got 'x'"),
    ("conversation.item.delete", {"item_id": "x"}, "item_id", "got 'x'"),
    ("conversation.item.retrieve", {"item_id": None}, "item_id", "must be text"),
    ("input_text_buffer.append", {"text": 5}, "text", "must be text, got 5"),
    ("response.create", {"response": {"max_output_tokens": 0}}, "response.max_output_tokens", 'at least 1, or "inf", got 0'),
    ("response.create", {"response": {"max_output_tokens": "5"}}, "response.max_output_tokens", "at least 1"),
    ("response.create", {"response": {"conversation": "none"}}, "response.conversation", '"auto"'),
    ("response.create", {"response": {"input": []}}, "response.input", "not supported"),
    ("response.create", {"response": {"n": 2}}, "response.n", "not known"),
    ("response.create", {}, "conversation", "has no items: create one, or commit input_text_buffer first"),
    ("response.cancel", {}, "type", "no response"),
    ("response.cancel", {"response_id": 5}, "response_id", "got 5"),
    ("session.create", {}, "type", "a connection is one session"),
    ("input_audio_buffer.append", {"audio": ""}, "type", "must be input_text_buffer.append: this server takes text only; got"),
    ("output_audio_buffer.clear", {}, "type", "response.cancel: this server takes text only; got"),
    ("nonsense", {}, "type", "got 'nonsense'"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("kind", "fields", "param", "says"), WRONG_FIELDS)
async def test_a_wrong_field_is_named(chat: RealtimeClient, kind: str, fields: Json, param: str, says: str) -> None:
    error = await chat.refused(kind, **fields)
    assert error["param"] == param
    assert says in error["message"], error
    assert error["code"] in CODES


NO_EVENTS: list[tuple[str | bytes, str]] = [
    ("", "not valid JSON"),
    ("{", "not valid JSON"),
    ("[]", "must be an object, got []"),
    ("5", "must be an object, got 5"),
    ("{}", "type is required"),
    ('{"type": 5}', "type must be text, got 5"),
    ('{"type": "response.create", "event_id": ""}', "event_id"),
    ('{"type": "input_text_buffer.append", "text": "\\ud800"}', "not valid JSON"),
    ('{"type": ' + "[" * 20_000 + "]" * 20_000 + "}", "nested too deeply"),
    (b'{"type": "response.create"}', "binary"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("message", "says"), NO_EVENTS)
async def test_what_is_no_event(chat: RealtimeClient, message: str | bytes, says: str) -> None:
    if isinstance(message, bytes):
        await chat.socket.send_bytes(message)
    else:
        await chat.socket.send_str(message)
    error = (await chat.next("error"))["error"]
    assert (error["type"], error["event_id"]) == ("invalid_request_error", None)
    assert error["code"] == ("invalid_event" if error["param"] is None else "invalid_value")
    assert says in error["message"], error
    assert len(error["message"]) < 1000


@pytest.mark.asyncio
async def test_items_that_cannot_be_cut(chat: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = [End("answer", "stop")]
    user = await chat.say("hi")
    answer = (await chat.respond())["output"][0]["id"]
    for fields, param in (
        ({"item_id": user, "content_index": 0, "text_end": 1}, "item_id"),
        ({"item_id": answer, "content_index": 1, "text_end": 1}, "content_index"),
        ({"item_id": answer, "content_index": 0, "text_end": -1}, "text_end"),
        ({"item_id": answer, "content_index": 0, "text_end": 7}, "text_end"),
    ):
        assert (await chat.refused("conversation.item.truncate", **fields))["param"] == param
    error = await chat.refused("conversation.item.create", item={**ITEM, "id": answer})
    assert error["param"] == "item.id"
    assert (await chat.refused("input_text_buffer.commit"))["code"] == "input_text_buffer_commit_empty"


@pytest.mark.asyncio
async def test_while_a_response_is_under_way(chat: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["a"]
    await chat.say("hi")
    await chat.send("response.create")
    item_id = (await chat.until("response.output_text.delta"))[-1]["item_id"]
    assert (await chat.refused("response.create"))["code"] == "conversation_already_has_active_response"
    assert (await chat.refused("response.cancel", response_id="x"))["param"] == "response_id"
    assert (await chat.refused("conversation.item.delete", item_id=item_id))["param"] == "item_id"
    assert (await chat.refused("conversation.item.truncate", item_id=item_id, content_index=0, text_end=0))[
        "param"
    ] == "item_id"
    engine.requests[0].say(End("b", "stop"))
    engine.answers[None] = [End("c", "stop")]
    assert (await chat.until("response.done"))[-1]["response"]["status"] == "completed"


@pytest.mark.asyncio
async def test_a_conversation_that_fills_the_context(chat: RealtimeClient) -> None:
    item_id = await chat.say("x" * 600)
    error = await chat.refused("response.create")
    assert (error["code"], error["param"]) == ("context_length_exceeded", "conversation")
    await chat.send("conversation.item.delete", item_id=item_id)
    await chat.next("conversation.item.deleted")


@pytest.mark.asyncio
async def test_a_conversation_has_an_end(tiny: str) -> None:
    async with served(ScriptedEngine(tiny), max_body_bytes=2000) as api, connected(api.url) as client:
        assert (await client.refused("input_text_buffer.append", text="x" * 2001))["code"] == "conversation_too_large"
        first = await client.say("x" * 1000)
        for _ in range(2):
            await client.say("")
        assert (await client.refused("conversation.item.create", item=ITEM))["code"] == "conversation_too_large"
        await client.send("conversation.item.delete", item_id=first)
        await client.next("conversation.item.deleted")
        await client.send("input_text_buffer.append", text="x" * 1000)
        assert (await client.refused("input_text_buffer.append", text="x" * 1000))["code"] == "conversation_too_large"
        assert (await client.ask("input_text_buffer.commit"))["type"] == "input_text_buffer.committed"


@pytest.mark.asyncio
async def test_answers_count_too(tiny: str) -> None:
    async with served(ScriptedEngine(tiny), max_body_bytes=1024) as api, connected(api.url) as client:
        first = await client.say("hi")
        await client.respond()
        await client.respond()
        for _ in range(2):
            assert (await client.refused("response.create"))["code"] == "conversation_too_large"
        await client.send("conversation.item.delete", item_id=first)
        await client.next("conversation.item.deleted")
        assert text_of(await client.respond()) == "Hello!"


@pytest.mark.asyncio
async def test_a_response_that_has_not_begun_counts_nothing(tiny: str) -> None:
    async with served(ScriptedEngine(tiny), max_body_bytes=1200) as api, connected(api.url) as client:
        await client.say("x" * 600)
        for _ in range(2):
            assert (await client.refused("response.create"))["code"] == "context_length_exceeded"


@pytest.mark.asyncio
async def test_when_too_many_requests_wait(tiny: str) -> None:
    engine = ScriptedEngine(tiny, max_num_seqs=1)
    engine.answers[None] = []
    async with served(engine, max_num_queued_reqs=0) as api, connected(api.url) as one, connected(api.url) as other:
        for client in (one, other):
            await client.say("hi")
        await one.send("response.create")
        await one.until("response.content_part.added")
        error: dict[str, Any] = (await other.ask("response.create", event_id="e"))["error"]
        assert (error["type"], error["code"], error["event_id"]) == ("service_unavailable_error", "overloaded", "e")
