"""Answers as token ids alone: where a client wants no text, and where a server has no tokenizer."""

from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio
import scripted_engine
from api_client import CHAT, COMPLETIONS, Json
from scripted_engine import End, ScriptedEngine, token_ids
from served_app import AppClient, served

from ringpost.actors.frontend.renderer import Renderer

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

PROMPT = token_ids("cat")
ASKED: Json = {"prompt": PROMPT, "return_token_ids": True}


@pytest.fixture
def engine(tiny: str, monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """One without a tokenizer."""
    monkeypatch.setattr(scripted_engine, "Renderer", partial(Renderer, skip_tokenizer_init=True))
    return ScriptedEngine(tiny, skip_tokenizer_init=True)


@pytest_asyncio.fixture
async def bare(engine: ScriptedEngine) -> AsyncIterator[AppClient]:
    async with served(engine) as client:
        yield client


async def told(api: AppClient, body: Json) -> list[tuple[str, list[int]]]:
    """The texts and the token ids of an answer, whole and streamed."""
    (choice,) = (await api.call(COMPLETIONS, body)).json["choices"]
    whole = (choice["text"], choice["token_ids"])
    pieces = [event["choices"][0] for event in (await api.call(COMPLETIONS, body | {"stream": True})).events]
    joined = "".join(piece["text"] for piece in pieces), [token for piece in pieces for token in piece["token_ids"]]
    return [whole, joined]


@pytest.mark.parametrize("detokenize", [{}, {"detokenize": False}, {"detokenize": None}])
async def test_without_a_tokenizer_completions_are_token_ids(bare: AppClient, detokenize: Json) -> None:
    assert await told(bare, ASKED | detokenize) == [("", token_ids("Hello!"))] * 2


async def test_without_a_tokenizer_several_prompts_and_logprobs(bare: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = [End("a")]
    body = ASKED | {"prompt": [PROMPT, PROMPT], "n": 2, "logprobs": 1, "prompt_logprobs": 1}
    choices = (await bare.call(COMPLETIONS, body)).json["choices"]
    (token,) = token_ids("a")
    assert [choice["token_ids"] for choice in choices] == [[token]] * 4
    assert [choice["logprobs"]["top_logprobs"] for choice in choices] == [[{f"token_id:{token}": -0.25}]] * 4
    assert [[*choice["prompt_logprobs"][2]] for choice in choices] == [[str(PROMPT[2])]] * 4


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": "cat"}, "prompt"),
        (COMPLETIONS, {"prompt": PROMPT, "detokenize": True}, "detokenize"),
        (COMPLETIONS, {"prompt": PROMPT, "echo": True}, "echo"),
        (COMPLETIONS, {"prompt": PROMPT, "stop": "x"}, "stop"),
        (COMPLETIONS, {"prompt": PROMPT, "bad_words": ["x"]}, "bad_words"),
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}, "messages"),
    ],
)
async def test_without_a_tokenizer_what_needs_one_is_refused(
    bare: AppClient, engine: ScriptedEngine, path: str, fields: Json, param: str
) -> None:
    for stream in (False, True):
        assert (await bare.refused(path, fields | {"stream": stream}))["param"] == param
    assert engine.requests == []


async def test_a_client_may_want_no_text(tiny: str) -> None:
    async with served(ScriptedEngine(tiny)) as api:
        for detokenize, text in ((False, ""), (True, "Hello!")):
            assert await told(api, ASKED | {"detokenize": detokenize}) == [(text, token_ids("Hello!"))] * 2
        (choice,) = (await api.call(COMPLETIONS, {"prompt": "cat", "echo": True, "detokenize": False})).json["choices"]
        assert choice["text"] == "cat"
