"""Prompts and messages that are refused, in words that name the place and the value, and forms that are taken."""

from collections.abc import AsyncIterator
from typing import Any, get_args, get_type_hints

import pytest
import pytest_asyncio
from api_client import CHAT, COMPLETIONS
from openai.types.chat import ChatCompletionMessageParam
from scripted_engine import ScriptedEngine
from served_app import AppClient, served

from ringpost.actors.api.protocol import ChatMessage


@pytest_asyncio.fixture
async def api(tiny: str) -> AsyncIterator[AppClient]:
    async with served(ScriptedEngine(tiny, max_model_len=64)) as client:
        yield client


PROMPTS: list[tuple[Any, str, str]] = [
    ("", "prompt", "empty"),
    ([], "prompt", "empty"),
    ([""], "prompt", "empty"),
    (["ok", ""], "prompt", "in prompt 1 of 2"),
    ([[]], "prompt", "empty"),
    ([[5], []], "prompt", "in prompt 1 of 2"),
    (["a", 1], "prompt", "token id 1"),
    ([1, "a"], "prompt", "token id 1"),
    ([[1], 1], "prompt", "token id 1"),
    ([[1], ["x"]], "prompt[1][0]", '"x"'),
    ([True], "prompt[0]", "true"),
    ([1.5], "prompt[0]", "1.5"),
    ([1.0], "prompt[0]", "1.0"),
    ([None], "prompt[0]", "null"),
    ([{}], "prompt[0]", "{}"),
    ([[[1]]], "prompt[0][0]", "[1]"),
    ([268], "prompt", "268"),
    ([[5], [268]], "prompt", "in prompt 1 of 2"),
    ([-1], "prompt", "-1"),
    ([9007199254740993], "prompt", "9007199254740993"),
    ([2**64], "prompt", str(2**64)),
    (None, "prompt", "null"),
    (5, "prompt", "5"),
    ({"prompt": "a"}, "prompt", "{"),
    ([5] * 64, "prompt", "64 tokens"),
    ("a" * 64, "prompt", "64 tokens"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("prompt", "param", "named"), PROMPTS, ids=lambda value: str(value)[:20])
async def test_a_wrong_prompt_is_named(api: AppClient, prompt: Any, param: str, named: str) -> None:
    error = await api.refused(COMPLETIONS, {"prompt": prompt})
    assert error["param"] == param
    assert error["message"].startswith("prompt")
    assert named in error["message"]


@pytest.mark.asyncio
async def test_no_prompt_of_a_refused_call_reaches_the_engine(tiny: str) -> None:
    engine = ScriptedEngine(tiny)
    async with served(engine) as api:
        await api.refused(COMPLETIONS, {"prompt": ["ok", ""]})
    assert (engine.requests, engine.aborted, engine.num_unfinished_requests) == ([], [], 0)
    assert sum(engine.stats.finished.values()) == 0


MESSAGES: list[tuple[Any, str, str]] = [
    ([], "messages", "[]"),
    (None, "messages", "null"),
    ("hi", "messages", '"hi"'),
    ([5], "messages[0]", "5"),
    ([{"role": "user", "content": None}], "messages[0].content", "required"),
    ([{"role": "user"}], "messages[0].content", "required"),
    ([{"role": "user", "content": 5}], "messages[0].content", "5"),
    ([{"role": "user", "content": "a"}, {"content": "a"}], "messages[1].role", "required"),
    ([{"role": 7, "content": "a"}], "messages[0].role", "7"),
    ([{"role": "user", "content": "a", "name": 7}], "messages[0].name", "7"),
    ([{"role": "user", "content": [5]}], "messages[0].content[0]", "5"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", "required"),
    ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text", "5"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type", "image_url"),
    ([{"role": "user", "content": "a" * 64}], "messages", "tokens"),
    ([{"role": "user", "content": "a" * 10_000}], "messages", "characters"),
    ([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{}]}], "messages[1].tool_calls", "not supported"),
    ([{"role": "assistant", "content": None, "tool_calls": [{}]}], "messages[0].tool_calls", "not supported"),
    ([{"role": "assistant", "content": "a", "tool_calls": [5]}], "messages[0].tool_calls", "not supported"),
    ([{"role": "assistant", "content": "a", "tool_calls": 5}], "messages[0].tool_calls", "5"),
    ([{"role": "tool", "content": "a", "tool_call_id": "x"}], "messages[0].tool_call_id", "not supported"),
    ([{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call", "not supported"),
    ([{"role": "assistant", "audio": {"id": "x"}}], "messages[0].audio", "not supported"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("messages", "param", "named"), MESSAGES, ids=lambda value: str(value)[:40])
async def test_a_wrong_message_is_named(api: AppClient, messages: Any, param: str, named: str) -> None:
    error = await api.refused(CHAT, {"messages": messages})
    assert error["param"] == param
    assert named in error["message"]


@pytest.mark.asyncio
async def test_a_message_as_an_answer_had_it_is_taken(api: AppClient) -> None:
    """Clients send what they got back again, empty fields and all."""
    empty: dict[str, Any] = {
        "tool_calls": [],
        "tool_call_id": None,
        "function_call": None,
        "audio": None,
        "refusal": None,
        "annotations": [],
    }
    for more in ({}, empty, {"tool_calls": None}):
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"} | more]
        assert (await api.call(CHAT, {"messages": messages})).status == 200


@pytest.mark.parametrize("theirs", get_args(ChatCompletionMessageParam))
def test_no_field_of_openais_messages_is_overlooked(theirs: type) -> None:
    harmless = {"refusal"}  # it stands where the content is empty
    assert get_type_hints(theirs).keys() - {*ChatMessage.__struct_fields__, *harmless} == set()


@pytest.mark.asyncio
async def test_a_field_that_must_be_there(api: AppClient) -> None:
    assert (await api.refused(COMPLETIONS, {}))["message"] == "prompt is required"
    assert (await api.refused(CHAT, {}))["param"] == "messages"


@pytest.mark.asyncio
async def test_parts_of_a_content_are_joined(tiny: str) -> None:
    engine = ScriptedEngine(tiny)
    async with served(engine) as api:
        for content in (
            "Hi",
            [{"type": "text", "text": "Hi"}],
            "H\ni",
            [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}],
        ):
            await api.ask(CHAT, {"messages": [{"role": "user", "content": content}]})
    one, as_part, two, as_parts = [request.message.prompt for request in engine.requests]
    assert one == as_part != two == as_parts
