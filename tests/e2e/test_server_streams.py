"""Answers of the HTTP server as they come: the framing of events, the text in them, and streams side by side."""

import asyncio
import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from api_client import CHAT, COMPLETIONS, Answer, Choice, Client, Json
from demo_tokens import DEF, EOS, FRANCE, FRANCE_IDS, HALF_EMOJI, NEWLINE, force, then_eos, user
from served_app import Reply
from servers import ServerProcess, running_server

ROUTES = [COMPLETIONS, CHAT]
FRANCE_ON: dict[str, Json] = {COMPLETIONS: {"prompt": FRANCE}, CHAT: {"messages": user(FRANCE)}}
OBJECTS = {COMPLETIONS: "text_completion", CHAT: "chat.completion.chunk"}

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # of the client; the server has its own


@pytest.fixture(scope="module")
def server(smollm2: str) -> Iterator[ServerProcess]:
    with running_server("--dtype", "float32", "--max-model-len", "512", "--num-threads", "1") as running:
        yield running
        assert running.stderr() == ""


@pytest.mark.parametrize(("token", "text"), [(DEF, "DEF"), (NEWLINE, "\n"), (EOS, "")])
async def test_a_forced_token_is_the_answer(client: Client, token: int, text: str) -> None:
    answer = await client.ask(COMPLETIONS, {"prompt": FRANCE, "return_token_ids": True, "max_tokens": 1, **force(token)})
    assert (answer.first.text, answer.first.token_ids) == (text, [token])
    assert answer.events[0]["choices"][0]["prompt_token_ids"] == FRANCE_IDS


def raw_stream(server: ServerProcess, path: str, body: Json) -> Reply:
    """A streamed reply, byte for byte."""
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port)
    try:
        connection.request("POST", path, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return Reply(reply.status, dict(reply.headers), reply.read())
    finally:
        connection.close()


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("fields", "text", "finish_reason"),
    [
        ({"max_tokens": 3, **force(NEWLINE)}, "\n\n\n", "length"),
        ({"max_tokens": 9, **then_eos(DEF, 2)}, "DEFDEF", "stop"),
        ({"max_tokens": 9, **force(EOS)}, "", "stop"),
    ],
    ids=["newlines", "stop", "empty"],
)
async def test_framing(server: ServerProcess, path: str, n: int, fields: Json, text: str, finish_reason: str) -> None:
    reply = await asyncio.to_thread(raw_stream, server, path, FRANCE_ON[path] | fields | {"n": n, "temperature": n - 1})
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    events = reply.events
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert {event["object"] for event in events} == {OBJECTS[path]}
    assert Answer(events).choices == {index: Choice(text, finish_reason) for index in range(n)}


async def test_several_prompts_share_one_stream(client: Client) -> None:
    body = {"prompt": [FRANCE, "ABC", FRANCE], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    whole, streamed = await client.both(COMPLETIONS, body)
    assert streamed.choices == whole.choices
    assert streamed.usage == whole.usage
    assert list(whole.choices) == [0, 1, 2]
    alone = await client.ask(COMPLETIONS, body | {"prompt": FRANCE})
    assert whole.choices[0] == whole.choices[2] == alone.first != whole.choices[1]


async def test_the_prompt_stays_out_of_the_answer(client: Client) -> None:
    prompt = [19556, 905, HALF_EMOJI, 235]  # "Hello world" and three quarters of an emoji, which 231 completes
    for answer in await client.both(COMPLETIONS, {"prompt": prompt, "max_tokens": 1, **force(231)}):
        assert answer.first.text == "\ufffd"


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "text", "finish_reason", "count"),
    [
        ({"max_tokens": 6, **force(HALF_EMOJI)}, "\ufffd" * 6, "length", 6),
        ({"max_tokens": 1, **force(HALF_EMOJI)}, "\ufffd", "length", 1),
        ({"max_tokens": 6, **then_eos(HALF_EMOJI, 1)}, "\ufffd", "stop", 2),
    ],
    ids=["several", "cut by length", "cut by the end"],
)
async def test_bytes_that_make_no_character(
    client: Client, path: str, fields: Json, text: str, finish_reason: str, count: int
) -> None:
    for answer in await client.both(path, FRANCE_ON[path] | fields):
        assert (answer.first.text, answer.first.finish_reason) == (text, finish_reason)
        assert answer.completion_tokens == count


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
async def test_usage_comes_only_when_asked(client: Client, path: str, options: Json | None) -> None:
    body = FRANCE_ON[path] | {"max_tokens": 3, **force(DEF), "stream_options": options}
    answer = await client.stream(path, body)
    assert answer.first.text == "DEFDEFDEF"
    assert not any("usage" in event for event in answer.events)


@pytest.mark.parametrize("path", ROUTES)
async def test_usage_comes_last_and_alone(client: Client, path: str) -> None:
    body = FRANCE_ON[path] | {"max_tokens": 5, "temperature": 0}
    whole, streamed = await client.both(path, body)
    *events, last = streamed.events
    assert all(event["choices"] and event["usage"] is None for event in events)
    assert last["choices"] == []
    assert last["usage"] == whole.usage
    assert whole.usage is not None
    assert (whole.usage["completion_tokens"], whole.usage["total_tokens"]) == (5, whole.usage["prompt_tokens"] + 5)


@pytest.mark.long
@pytest.mark.parametrize("second", ROUTES)
async def test_a_second_stream_does_not_hold_up_the_first(client: Client, second: str) -> None:
    fields = {"max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    bodies = [(COMPLETIONS, {"prompt": "Once upon a time", **fields}), (second, FRANCE_ON[second] | fields)]
    alone = [await client.stream(*body) for body in bodies]
    order: list[str] = []
    under_way = asyncio.Event()

    def first_moves(event: Json) -> None:
        order.append("first")
        if len(order) == 5:
            under_way.set()

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(client.stream(*bodies[0], first_moves))
        await under_way.wait()
        other = tasks.create_task(client.stream(*bodies[1], lambda event: order.append("second")))
    assert order.index("second") < len(order) - 1 - order[::-1].index("first")
    for together, solo in zip((first.result(), other.result()), alone, strict=True):
        assert together.choices == solo.choices
        assert (len(solo.first.token_ids), solo.first.finish_reason) == (24, "length")


@pytest.mark.long
async def test_both_routes_serve_many_at_once(client: Client) -> None:
    fields = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    texts = [FRANCE, "Once upon a time", "def main():", "ABC"]
    bodies = [(COMPLETIONS, {"prompt": text, **fields}) for text in texts]
    bodies += [(CHAT, {"messages": user(text), **fields}) for text in texts]
    alone = [await client.ask(*body) for body in bodies]
    async with asyncio.TaskGroup() as tasks:
        whole = [tasks.create_task(client.ask(*body)) for body in bodies]
        streamed = [tasks.create_task(client.stream(*body)) for body in bodies]
    assert [task.result().choices for task in whole] == [answer.choices for answer in alone]
    assert [task.result().choices for task in streamed] == [answer.choices for answer in alone]
