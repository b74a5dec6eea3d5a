"""Logprobs in replies: their forms, the names of tokens, and that the pieces of a stream are the whole."""

import json
from typing import Any

import pytest
from api_client import CHAT, COMPLETIONS, Json, joined
from scripted_engine import End, ScriptedEngine, token_ids
from served_app import AppClient, served

from ringpost.actors.api import submission
from ringpost.actors.api.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from ringpost.actors.frontend.logprobs import Logprob, Position

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

BODIES: dict[str, Json] = {COMPLETIONS: {"prompt": "hi"}, CHAT: {"messages": [{"role": "user", "content": "hi"}]}}
LEAST = -9999.0
HEART = "\N{HEAVY BLACK HEART}"


async def whole(api: AppClient, path: str, **fields: Any) -> Json:
    reply = await api.call(path, BODIES[path] | fields)
    assert reply.status == 200, reply.body
    assert reply.json["choices"]
    return reply.json


async def events(api: AppClient, path: str, **fields: Any) -> list[Json]:
    return (await api.call(path, BODIES[path] | {"stream": True} | fields)).events


async def test_a_completion(api: AppClient) -> None:
    (choice,) = (await whole(api, COMPLETIONS, logprobs=2))["choices"]
    assert choice["text"] == "Hello!"
    assert choice["logprobs"] == {
        "tokens": list("Hello!"),
        "token_logprobs": [-0.25] * 6,
        "top_logprobs": [{letter: -0.25, chr(ord(letter) + 1): -0.75} for letter in "Hello!"],
        "text_offset": [0, 1, 2, 3, 4, 5],
    }
    (choice,) = (await whole(api, COMPLETIONS, logprobs=0))["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{letter: -0.25} for letter in "Hello!"]
    for nothing in (None, False):
        assert (await whole(api, COMPLETIONS, logprobs=nothing))["choices"][0]["logprobs"] is None


async def test_a_chat(api: AppClient) -> None:
    (choice,) = (await whole(api, CHAT, logprobs=True, top_logprobs=2))["choices"]
    assert choice["logprobs"] == {
        "content": [
            {
                "token": letter,
                "logprob": -0.25,
                "bytes": [ord(letter)],
                "top_logprobs": [
                    {"token": letter, "logprob": -0.25, "bytes": [ord(letter)]},
                    {"token": chr(ord(letter) + 1), "logprob": -0.75, "bytes": [ord(letter) + 1]},
                ],
            }
            for letter in "Hello!"
        ]
    }
    plain: list[Json] = [{"logprobs": True}, {"logprobs": True, "top_logprobs": 0}]
    for fields in plain:
        (choice,) = (await whole(api, CHAT, **fields))["choices"]
        assert [entry["top_logprobs"] for entry in choice["logprobs"]["content"]] == [[]] * 6
    nothing: list[Json] = [{}, {"logprobs": False}, {"logprobs": None, "top_logprobs": 0}]
    for fields in nothing:
        assert (await whole(api, CHAT, **fields))["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"return_tokens_as_token_ids": True}, {"stop": "lo"}])
async def test_the_pieces_of_a_stream_are_the_whole(api: AppClient, path: str, fields: Json) -> None:
    """Also where text is held back because it may become a stop string."""
    asked = {"logprobs": 3} if path == COMPLETIONS else {"logprobs": True, "top_logprobs": 3}
    choices = (await whole(api, path, **asked, **fields))["choices"]
    streamed = [event["choices"][0] for event in await events(api, path, **asked, **fields)]
    for choice in choices:
        parts = [part["logprobs"] for part in streamed if part["index"] == choice["index"]]
        assert joined(parts) == choice["logprobs"]
    assert len(choices) == fields.get("n", 1)


async def test_tokens_by_their_ids(api: AppClient) -> None:
    h, i = token_ids("Hi")
    (choice,) = (await whole(api, COMPLETIONS, logprobs=1, return_tokens_as_token_ids=True))["choices"]
    assert choice["text"] == "Hello!"
    assert choice["logprobs"]["tokens"][0] == f"token_id:{h}"
    assert choice["logprobs"]["top_logprobs"][0] == {f"token_id:{h}": -0.25}
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4, 5]
    (choice,) = (await whole(api, CHAT, logprobs=True, top_logprobs=2, return_tokens_as_token_ids=True))["choices"]
    first = choice["logprobs"]["content"][0]
    assert (first["token"], first["bytes"]) == (f"token_id:{h}", [ord("H")])
    assert [entry["token"] for entry in first["top_logprobs"]] == [f"token_id:{h}", f"token_id:{h + 1}"]
    assert i > h


async def test_parts_of_a_character(api: AppClient, engine: ScriptedEngine) -> None:
    """Texts join to the answer, and each byte is told."""
    engine.answers[None] = ["a", *[HEART.encode()[place : place + 1] for place in range(3)], End("b")]
    (choice,) = (await whole(api, COMPLETIONS, logprobs=2))["choices"]
    assert choice["logprobs"]["tokens"] == ["a", "", "", HEART, "b"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 1, 2]
    assert [list(top) for top in choice["logprobs"]["top_logprobs"]] == [
        ["a", "b"],
        ["bytes:\\xe2", "bytes:\\xe3"],
        ["bytes:\\x9d", "bytes:\\x9e"],
        ["bytes:\\xa4", "bytes:\\xa5"],
        ["b", "c"],
    ]
    (choice,) = (await whole(api, CHAT, logprobs=True, top_logprobs=2))["choices"]
    content = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"] == f"a{HEART}b"
    assert bytes([byte for entry in content for byte in entry["bytes"]]) == f"a{HEART}b".encode()
    assert [[top["bytes"] for top in entry["top_logprobs"]] for entry in content[1:3]] == [
        [[0xE2], [0xE3]],
        [[0x9D], [0x9E]],
    ]
    pieces = await events(api, COMPLETIONS, logprobs=2)
    assert [event["choices"][0]["text"] for event in pieces] == ["a", "", "", HEART, "b"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_token_without_text_and_an_end_without_a_token(api: AppClient, engine: ScriptedEngine, path: str) -> None:
    engine.answers[None] = ["a", End("", "stop")]
    asked = {"logprobs": 0} if path == COMPLETIONS else {"logprobs": True}
    logprobs = (await whole(api, path, **asked))["choices"][0]["logprobs"]
    texts = logprobs["tokens"] if path == COMPLETIONS else [entry["token"] for entry in logprobs["content"]]
    assert texts == ["a", "<|im_end|>"]
    engine.answers[None] = ["a", End()]
    *_, last = await events(api, path, **asked)
    assert (last["choices"][0]["finish_reason"], last["choices"][0]["logprobs"]) == ("length", None)


@pytest.mark.parametrize("path", BODIES)
async def test_those_of_the_prompt(api: AppClient, engine: ScriptedEngine, path: str) -> None:
    body = await whole(api, path, prompt_logprobs=2, n=2)
    prompt = engine.requests[-1].message.prompt
    told = [choice["prompt_logprobs"] for choice in body["choices"]] if path == COMPLETIONS else [body["prompt_logprobs"]]
    first, *rest = told[0]
    assert all(one == told[0] for one in told)
    assert (first, len(rest)) == (None, len(prompt) - 1)
    for token, place in zip(prompt[1:], rest, strict=True):
        assert list(place) == [str(token), str(token + 1)]
        assert [(entry["logprob"], entry["rank"]) for entry in place.values()] == [(-0.25, 1), (-0.75, 2)]
    assert rest[-1][str(prompt[-1])]["decoded_token"] == ("i" if path == COMPLETIONS else "\n")

    pieces = await events(api, path, prompt_logprobs=2, n=2)
    for index in (0, 1):
        opening, *later = [event for event in pieces if event["choices"][0]["index"] == index]
        holder = opening["choices"][0] if path == COMPLETIONS else opening
        assert holder["prompt_logprobs"] == told[0]
        assert all(b"prompt_logprobs" not in json.dumps(event).encode() for event in later)
    assert "prompt_logprobs" not in json.dumps(await whole(api, path))


@pytest.mark.parametrize("path", BODIES)
async def test_numbers_that_are_refused(api: AppClient, path: str) -> None:
    name = "logprobs" if path == COMPLETIONS else "top_logprobs"
    more = {} if path == COMPLETIONS else {"logprobs": True}
    assert (await api.call(path, BODIES[path] | more | {name: 20})).status == 200
    for wrong in (21, -1, -2, 2**40):
        error = await api.refused(path, BODIES[path] | more | {name: wrong})
        assert error["param"] == name
        assert error["message"].startswith(f"{name} must be ")
        assert error["message"].endswith(f"got {wrong}")
    odds: list[Any] = ["5", 1.5, []]
    for odd in odds:
        assert (await api.refused(path, BODIES[path] | more | {name: odd}))["param"] == name


@pytest.mark.parametrize("path", BODIES)
async def test_those_of_a_prompt_are_bounded_in_a_reply(api: AppClient, engine: ScriptedEngine, path: str) -> None:
    """A small request could ask for gigabytes otherwise."""
    text = "x" * 200
    body: Json = {"prompt": text} if path == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
    for stream in (False, True):
        error = await api.refused(path, body | {"n": 128, "prompt_logprobs": 20, "stream": stream})
        assert error["param"] == "prompt_logprobs"
        assert error["message"].startswith("prompt_logprobs must ask for at most 500000 entries in one reply, got ")
        assert error["message"].endswith(" prompt tokens x 21 entries x n=128")
    assert engine.requests == []


async def test_the_bound_counts_prompts_choices_tokens_and_entries(
    api: AppClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "MAX_PROMPT_LOGPROBS", 5 * 3 * 2)
    asked: Json = {"prompt": ["ab", "cde"], "prompt_logprobs": 2, "n": 2}
    for choice in (await api.call(COMPLETIONS, asked)).json["choices"]:
        assert [len(place or ()) for place in choice["prompt_logprobs"]] in ([0, 2], [0, 2, 2])
    for more in ({"prompt": ["abc", "cde"]}, {"prompt": "abcdef"}, {"prompt_logprobs": 3}, {"n": 3}):
        error = await api.refused(COMPLETIONS, asked | more)
        assert error["param"] == "prompt_logprobs"
        assert "at most 30 entries" in error["message"]
    error = await api.refused(COMPLETIONS, {"prompt": "abcdef", "echo": True, "logprobs": 2, "n": 2})
    assert error["message"] == (
        "logprobs must ask for at most 30 entries in one reply, got 36: 6 prompt tokens x 3 entries x n=2"
    )
    assert error["param"] == "logprobs"
    assert (await api.call(COMPLETIONS, {"prompt": "abcdef", "logprobs": 2, "n": 2})).status == 200
    assert len(engine.requests) == 3


async def test_the_bound_on_whole_vocabularies(tiny: str) -> None:
    engine = ScriptedEngine(tiny, max_logprobs=-1)
    size = engine.config.checkpoint.vocab_size
    async with served(engine) as api:
        error = await api.refused(COMPLETIONS, {"prompt": [5] * 200, "n": 100, "prompt_logprobs": -1})
        assert error["message"].endswith(f"got {20000 * size}: 200 prompt tokens x {size} entries x n=100")


async def test_what_chat_calls_them(api: AppClient) -> None:
    for wrong in (5, "x", 0):
        error = await api.refused(CHAT, BODIES[CHAT] | {"logprobs": wrong})
        assert (error["param"], "true or false" in error["message"]) == ("logprobs", True)
    for alone in ({"top_logprobs": 2}, {"top_logprobs": 2, "logprobs": False}):
        error = await api.refused(CHAT, BODIES[CHAT] | alone)
        assert error["param"] == "top_logprobs"
        assert error["message"] == "top_logprobs may only be given with logprobs=true, got 2"


async def test_the_whole_vocabulary(tiny: str) -> None:
    async with served(ScriptedEngine(tiny, max_logprobs=-1)) as api:
        error = await api.refused(COMPLETIONS, BODIES[COMPLETIONS] | {"logprobs": -2})
        assert error["param"] == "logprobs"
        assert (await whole(api, COMPLETIONS, logprobs=100))["choices"][0]["logprobs"]["tokens"] == list("Hello!")


def entry(logprob: float, rank: int | None, spelled: bytes) -> Logprob:
    return Logprob(logprob, rank, spelled.decode(errors="replace"), spelled)


UNLIKELY: Position = {7: entry(-5.0, 40, b"x"), 1: entry(-0.5, 1, b"a"), 2: entry(-1.0, 2, b"b")}


async def test_a_token_that_is_not_among_the_likeliest() -> None:
    """Completions tell it besides, chats do not."""
    told = completion_logprobs(["x"], [7], [UNLIKELY], 3, as_ids=False)
    assert told.top_logprobs == [{"x": -5.0, "a": -0.5, "b": -1.0}]
    assert (told.token_logprobs, told.text_offset) == ([-5.0], [3])
    chat = chat_logprobs([7], [UNLIKELY], 2, as_ids=False)
    assert chat is not None
    assert (chat.content[0].token, [top.token for top in chat.content[0].top_logprobs]) == ("x", ["a", "b"])
    everything = chat_logprobs([7], [UNLIKELY], -1, as_ids=False)
    assert everything is not None
    assert [top.token for top in everything.content[0].top_logprobs] == ["a", "b", "x"]


async def test_tokens_that_look_the_same_stay_apart() -> None:
    place: Position = {
        1: entry(-1.0, 1, b"a"),
        2: entry(-2.0, 2, b"a"),
        3: entry(-3.0, 3, b"\xf0\x9f"),
        4: entry(-4.0, 4, b"\xf0"),
        5: entry(-5.0, 5, b""),
    }
    told = completion_logprobs(["a"], [1], [place], 0, as_ids=False)
    assert told.top_logprobs == [
        {"a": -1.0, "token_id:2": -2.0, "bytes:\\xf0\\x9f": -3.0, "bytes:\\xf0": -4.0, "token_id:5": -5.0}
    ]


async def test_what_is_impossible_is_a_number() -> None:
    place: Position = {1: entry(float("-inf"), 2, b"a"), 2: entry(float("nan"), None, b"b")}
    told = completion_logprobs(["a"], [1], [place], 0, as_ids=False)
    assert (told.token_logprobs, told.top_logprobs) == ([LEAST], [{"a": LEAST, "b": LEAST}])
    chat = chat_logprobs([1], [place], 2, as_ids=False)
    assert chat is not None
    assert {chat.content[0].logprob, *[top.logprob for top in chat.content[0].top_logprobs]} == {LEAST}
    first, second = json.loads(bytes(prompt_logprobs([None, place])))
    assert first is None
    assert [(one["logprob"], one["rank"]) for one in second.values()] == [(LEAST, 2), (LEAST, None)]
