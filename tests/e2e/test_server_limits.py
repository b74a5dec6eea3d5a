"""What the HTTP server refuses, cuts to size or takes in several forms; a stream that runs meanwhile feels nothing of it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from api_client import CHAT, COMPLETIONS, Client, Json
from demo_tokens import DEF, FRANCE, VOCABULARY, force, user
from servers import ServerProcess, running_server

ROOM = 64  # tokens of the context
MEGABYTE = 1 << 20

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # of the client; the server has its own


@pytest.fixture(scope="module")
def server(smollm2: str) -> Iterator[ServerProcess]:
    with running_server("--dtype", "float32", "--max-model-len", str(ROOM), "--num-threads", "1") as running:
        yield running
        assert running.stderr() == ""


@pytest_asyncio.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with Client(server.url) as connected:
        yield connected
        answer = await connected.ask(COMPLETIONS, {"prompt": FRANCE, "max_tokens": 1, "temperature": 0})
        assert answer.first.text == " Paris", "the server is no longer well"


async def test_a_chat_without_a_limit_fills_the_context(client: Client) -> None:
    answer = await client.ask(CHAT, {"messages": user("Hi"), "ignore_eos": True, **force(DEF)})
    assert answer.usage is not None
    count = ROOM - answer.usage["prompt_tokens"]
    assert (answer.first.text, answer.first.finish_reason, answer.completion_tokens) == ("DEF" * count, "length", count)


@pytest.mark.parametrize("fields", [{}, {"max_tokens": None}])
async def test_a_completion_without_a_limit_has_16_tokens(client: Client, fields: Json) -> None:
    answer = await client.ask(COMPLETIONS, {"prompt": FRANCE, **fields, **force(DEF)})
    assert (answer.first.text, answer.first.finish_reason) == ("DEF" * 16, "length")


async def test_an_answer_is_cut_to_what_the_context_leaves(client: Client) -> None:
    for answer in await client.both(COMPLETIONS, {"prompt": [504] * 60, "max_tokens": 10, **force(DEF)}):
        assert answer.usage is not None
        assert (answer.usage["prompt_tokens"], answer.completion_tokens, answer.usage["total_tokens"]) == (60, 4, ROOM)
        assert (answer.first.text, answer.first.finish_reason) == ("DEF" * 4, "length")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("length", [ROOM, ROOM + 1])
async def test_a_prompt_without_room_for_an_answer(client: Client, length: int, stream: bool) -> None:
    one_word = " one" * length  # of one token each
    bodies: list[tuple[str, Json]] = [(COMPLETIONS, {"prompt": [504] * length}), (COMPLETIONS, {"prompt": one_word})]
    for path, body in bodies:
        error = await client.refused(path, body | {"stream": stream})
        assert error["message"].startswith(f"prompt has {length} tokens; with max_model_len={ROOM} it may have at most 63")
        assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    error = await client.refused(CHAT, {"messages": user(one_word), "stream": stream})
    assert f"max_model_len={ROOM}" in error["message"]
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


async def test_megabytes_of_text_are_refused(client: Client) -> None:
    text = FRANCE * (6 * MEGABYTE // len(FRANCE))
    prompts: list[object] = [text, ["ok", text]]
    for prompt in prompts:  # without even counting the tokens, which would take seconds
        assert "characters, which are at least" in (await client.refused(COMPLETIONS, {"prompt": prompt}))["message"]
    assert (await client.refused(CHAT, {"messages": user(text[:MEGABYTE])}))["code"] == "context_length_exceeded"
    status, content = await client.post(COMPLETIONS, {"prompt": text * 2})
    assert status == 413
    assert b"8388608" in content


EMPTY_PROMPTS: list[Any] = ["", [], [""], ["ok", ""], [[]], ["ok", []], "\u0004"]  # the last has no token at all
EMPTY = [*((COMPLETIONS, {"prompt": prompt}) for prompt in EMPTY_PROMPTS), (CHAT, {"messages": []})]


@pytest.mark.parametrize(("path", "body"), EMPTY, ids=str)
async def test_an_empty_prompt_is_refused(client: Client, path: str, body: Json) -> None:
    for stream in (False, True):
        error = await client.refused(path, body | {"stream": stream, "max_tokens": 2})
        assert error["param"] == ("prompt" if path == COMPLETIONS else "messages")


OUTSIDE: list[list[Any]] = [[VOCABULARY], [-1], [2**53 + 1], [10**30], [True], [1.5], [None], ["a", 1]]


@pytest.mark.parametrize("prompt", OUTSIDE, ids=str)
async def test_what_is_no_token_id_is_refused_alone_and_in_a_batch(client: Client, prompt: list[Any]) -> None:
    for bad in (prompt, [[504, 3575], prompt]):
        assert (await client.refused(COMPLETIONS, {"prompt": bad, "max_tokens": 2}))["param"].startswith("prompt")
    await client.idle()


async def test_the_last_id_of_the_vocabulary_is_one(client: Client) -> None:
    answer = await client.ask(COMPLETIONS, {"prompt": [VOCABULARY - 1], "max_tokens": 2, "temperature": 0})
    assert answer.completion_tokens == 2


BAD_FIELDS: list[Json] = [
    {"logit_bias": {str(VOCABULARY): 5}},
    {"logit_bias": {"-1": 1}},
    {"logit_bias": {"x": 1}},
    {"logit_bias": {"1": None}},
    {"stop_token_ids": [VOCABULARY]},
    {"allowed_token_ids": []},
    {"allowed_token_ids": [VOCABULARY]},
]


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=str)
async def test_a_field_with_a_wrong_token_id_is_named(client: Client, fields: Json) -> None:
    error = await client.refused(COMPLETIONS, {"prompt": FRANCE, "max_tokens": 2, **fields})
    assert error["param"].startswith(*fields)


@pytest.mark.long
async def test_a_stream_feels_nothing_of_refusals(client: Client) -> None:
    body = {"prompt": "Once upon a time", "ignore_eos": True, "max_tokens": 32, "temperature": 0, "return_token_ids": True}
    bad = [*EMPTY, *((COMPLETIONS, {"prompt": [[504], prompt]}) for prompt in OUTSIDE)]
    bad += [(COMPLETIONS, {"prompt": FRANCE, **fields}) for fields in BAD_FIELDS]
    alone = await client.stream(COMPLETIONS, body)
    events = 0
    under_way = asyncio.Event()

    def count(event: Json) -> None:
        nonlocal events
        events += 1
        under_way.set()

    async with asyncio.TaskGroup() as tasks:
        stream = tasks.create_task(client.stream(COMPLETIONS, body, count))
        await under_way.wait()
        for path, refused in bad:
            await client.refused(path, refused)
        assert events < 32, "the stream had ended before the last refusal"
    assert stream.result().choices == alone.choices
    assert len(alone.first.token_ids) == 32


@pytest.mark.parametrize(("texts", "joined"), [(["Hi"], "Hi"), (["H", "i"], "H\ni"), (["", "Hi"], "\nHi")], ids=repr)
async def test_text_parts_are_as_good_as_their_text(client: Client, texts: list[str], joined: str) -> None:
    parts = [{"type": "text", "text": text} for text in texts]
    answers = [
        await client.ask(CHAT, {"messages": user(content), "max_tokens": 4, "temperature": 0}) for content in (parts, joined)
    ]
    counts = [(answer.prompt_tokens, answer.completion_tokens) for answer in answers]
    assert counts[0] == counts[1]
    assert answers[0].choices == answers[1].choices


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": None},
        {"role": "user"},
        {"role": "user", "content": 5},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"content": "Hi"},
        {"role": 7, "content": "Hi"},
        "Hi",
    ],
    ids=str,
)
async def test_a_message_of_another_form_is_named(client: Client, message: object) -> None:
    error = await client.refused(CHAT, {"messages": [user("Hi")[0], message], "max_tokens": 2})
    assert error["param"].startswith("messages[1]")


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "\\ud83d", "max_tokens": 1}',
        b'{"prompt": "a\\ud83d", "max_tokens": 1}',
        b'{"prompt": ',
        b"",
        b"[]",
        b"null",
        b'{"prompt": "\xff", "max_tokens": 1}',
        b'{"prompt": "x", "foo": "\xff"}',
        b'{"prompt": %b}' % (b"[" * 100_000 + b"]" * 100_000),
        b'{"prompt": "x", "foo": %b}' % (b"[" * 100_000 + b"]" * 100_000),
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"messages": [%b]}' % b",".join([b'{"role": "user", "content": 5}'] * 5000),
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_a_malformed_body_is_refused_in_few_words(client: Client, body: bytes) -> None:
    for path in (COMPLETIONS, CHAT):
        await client.refused(path, body)


async def test_a_field_nobody_knows_is_ignored(client: Client) -> None:
    body = {"prompt": FRANCE, "max_tokens": 2, "temperature": 0}
    with_field = await client.ask(COMPLETIONS, body | {"foo": 1})
    assert with_field.choices == (await client.ask(COMPLETIONS, body)).choices
