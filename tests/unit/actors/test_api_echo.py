"""Prompts that come back with their completions."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from api_client import COMPLETIONS, Json, joined
from scripted_engine import End, ScriptedEngine, token_ids
from served_app import AppClient, served
from tiny_checkpoint import write_tiny_llama
from tokenizers import processors

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

NOT_ALL = b"\xf0\x9f"  # the first half of a character


async def whole(api: AppClient, **fields: Any) -> Json:
    reply = await api.call(COMPLETIONS, {"echo": True} | fields)
    assert reply.status == 200, reply.body
    return reply.json


async def streamed(api: AppClient, **fields: Any) -> list[Json]:
    return (await api.call(COMPLETIONS, {"echo": True, "stream": True} | fields)).events


async def test_the_text(api: AppClient) -> None:
    for prompt, text in (("cat", "cat"), (token_ids("cat"), "cat"), ("in the\n\u00e9", "in the\n\u00e9")):
        (choice,) = (await whole(api, prompt=prompt))["choices"]
        assert (choice["text"], choice["logprobs"]) == (text + "Hello!", None)
    (choice,) = (await whole(api, prompt="cat", echo=False))["choices"]
    assert choice["text"] == "Hello!"


async def test_prompts_and_choices_have_their_own(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers |= {"cat": [End("1")], "dogs": ["2", End("3")]}
    body = {"prompt": ["cat", "dogs"], "n": 2}
    assert [choice["text"] for choice in (await whole(api, **body))["choices"]] == ["cat1", "cat1", "dogs23", "dogs23"]
    texts = dict.fromkeys(range(4), "")
    for event in await streamed(api, **body):
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"] + "|"
    assert texts == {0: "cat1|", 1: "cat1|", 2: "dogs2|3|", 3: "dogs2|3|"}


async def test_logprobs_begin_with_the_prompts(api: AppClient, engine: ScriptedEngine) -> None:
    (choice,) = (await whole(api, prompt="cat", logprobs=1))["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"] == "catHello!"
    assert logprobs["token_logprobs"] == [None] + [-0.25] * 8
    assert logprobs["top_logprobs"] == [None, *({letter: -0.25} for letter in "atHello!")]
    assert logprobs["text_offset"] == list(range(9))
    assert "prompt_logprobs" not in choice
    assert engine.requests[-1].params.prompt_logprobs == 1

    pieces = [event["choices"][0]["logprobs"] for event in await streamed(api, prompt="cat", logprobs=1)]
    assert joined(pieces) == logprobs
    assert pieces[0]["tokens"] == list("catHel")


async def test_offsets_count_characters(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["\u00e9", End("b")]
    logprobs = (await whole(api, prompt="h\u00e9", logprobs=0))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["h", "", "\u00e9", "", "\u00e9", "b"]
    assert logprobs["text_offset"] == [0, 1, 1, 2, 2, 3]


async def test_a_prompt_that_ends_within_a_character(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = [End("b")]
    (choice,) = (await whole(api, prompt=token_ids(b"a" + NOT_ALL), logprobs=0))["choices"]
    assert choice["text"] == "a\ufffdb"
    assert "".join(choice["logprobs"]["tokens"]) == "a\ufffdb"


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": 0}, {"logprobs": 2}])
async def test_nothing_but_the_prompt(api: AppClient, engine: ScriptedEngine, fields: Json) -> None:
    """As evaluation harnesses ask for it."""
    engine.answers[None] = [End("x", "stop")]
    body = await whole(api, prompt="cat", max_tokens=0, return_token_ids=True, **fields)
    assert engine.requests[-1].params.max_tokens == 1
    for choice in body["choices"]:
        assert (choice["text"], choice["token_ids"], choice["finish_reason"]) == ("cat", [], "length")
        if "logprobs" in fields:
            assert choice["logprobs"]["tokens"] == list("cat")
            assert choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.25]
    assert len(body["choices"]) == fields.get("n", 1)
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 0)
    options = {"include_usage": True}
    *events, last = await streamed(api, prompt="cat", max_tokens=0, stream_options=options, return_token_ids=True, **fields)
    pieces = sorted((event["choices"][0] for event in events), key=lambda choice: int(choice["index"]))
    assert pieces == body["choices"]
    assert last["usage"] == body["usage"]


async def test_no_tokens_without_the_prompt_are_refused(api: AppClient) -> None:
    for fields in ({}, {"echo": False}, {"echo": None}):
        error = await api.refused(COMPLETIONS, {"prompt": "cat", "max_tokens": 0, **fields})
        assert error["param"] == "max_tokens"


async def test_prompt_logprobs_beside_it(api: AppClient) -> None:
    (choice,) = (await whole(api, prompt="cat", prompt_logprobs=1))["choices"]
    assert (choice["text"], choice["logprobs"], len(choice["prompt_logprobs"])) == ("catHello!", None, 3)
    (choice,) = (await whole(api, prompt="cat", prompt_logprobs=1, logprobs=2))["choices"]
    assert [len(top or ()) for top in choice["logprobs"]["top_logprobs"]] == [0, 1, 1] + [2] * 6
    assert len(choice["prompt_logprobs"]) == 3


async def test_an_answer_that_is_ended_before_it_begins(api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = []
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(whole(api, prompt="cat", logprobs=1, request_id="r"))
        await engine.nth_request(0)
        await engine.abort("r")
    (choice,) = asked.result()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("cat", "abort")
    assert (choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]) == (list("cat"), [None] * 3)


async def test_too_many_logprobs_are_named_as_the_client_did(api: AppClient) -> None:
    for fields, named in (({"logprobs": 21}, "logprobs"), ({"logprobs": 1, "prompt_logprobs": 21}, "prompt_logprobs")):
        error = await api.refused(COMPLETIONS, {"prompt": "cat", "echo": True} | fields)
        assert error["param"] == named


async def test_special_tokens_that_the_tokenizer_adds_are_no_text(tmp_path: Path) -> None:
    """Those of the client's are."""
    model = write_tiny_llama(tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    tokenizer.save(str(model / "tokenizer.json"))
    engine = ScriptedEngine(str(model))
    async with served(engine) as api:
        (choice,) = (await whole(api, prompt="cat", logprobs=0))["choices"]
        assert engine.requests[-1].message.prompt == [1, *token_ids("cat")]
        assert choice["text"] == "catHello!"
        assert choice["logprobs"]["tokens"] == ["", *"catHello!"]
        (choice,) = (await whole(api, prompt=[1, *token_ids("cat")]))["choices"]
        assert choice["text"] == "<|im_start|>catHello!"
