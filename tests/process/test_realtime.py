"""/v1/realtime over a whole server and the tiny model: the answers are those of the other routes, and nothing stays behind."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from aiohttp import WSCloseCode
from api_client import CHAT, COMPLETIONS, Client, Json
from realtime_client import RealtimeClient, connected, text_of
from servers import ServerProcess, running_server

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

GREEDY: Json = {"temperature": 0, "ignore_eos": True}
ENDLESS: Json = GREEDY | {"max_output_tokens": 400}
OPTIONS = ("--dtype=float32", "--num-threads=1", "--shutdown-timeout=30", "--max-num-seqs=8")


@pytest.fixture(scope="module")
def server(tiny: str) -> Iterator[ServerProcess]:
    with running_server(tiny, *OPTIONS) as running:
        yield running
        assert running.stderr() == ""


@pytest_asyncio.fixture
async def chat(server: ServerProcess) -> AsyncIterator[RealtimeClient]:
    """A connection whose answers are greedy."""
    async with connected(server.url) as client:
        await client.send("session.update", session=GREEDY)
        await client.next("session.updated")
        yield client


async def until_text(client: RealtimeClient) -> str:
    """Wait for the first text of a response; the id of its item."""
    return str((await client.until("response.output_text.delta"))[-1]["item_id"])


async def converse(client: RealtimeClient, http: Client, name: str) -> None:
    """Three turns, each as the chat route would answer the whole conversation."""
    messages: list[Json] = []
    for turn in range(3):
        words = f"{name} says {turn}"
        messages.append({"role": "user", "content": words})
        await client.say(words)
        response = await client.respond(max_output_tokens=8)
        whole = await http.ask(CHAT, {"messages": messages, "max_tokens": 8, **GREEDY})
        assert text_of(response) == whole.first.text
        usage = response["usage"]
        assert (usage["input_tokens"], usage["output_tokens"]) == (whole.prompt_tokens, whole.completion_tokens)
        messages.append({"role": "assistant", "content": text_of(response)})


async def test_turns_are_answered_as_a_chat_is(server: ServerProcess, chat: RealtimeClient, client: Client) -> None:
    await converse(chat, client, "one")
    async with asyncio.TaskGroup() as tasks:
        for number in range(12):
            tasks.create_task(alone(server, client, f"client {number}"))


async def alone(server: ServerProcess, http: Client, name: str) -> None:
    """The same on a connection of its own."""
    async with connected(server.url) as client:
        await client.send("session.update", session=GREEDY)
        await client.next("session.updated")
        await converse(client, http, name)


async def test_a_text_goes_on_as_a_completion_does(server: ServerProcess, client: Client) -> None:
    async with connected(server.url, "?mode=text") as text:
        await text.say("Once")
        await text.say(" upon")
        first = await text.respond(max_output_tokens=6, **GREEDY)
        second = await text.respond(max_output_tokens=6, **GREEDY)
        whole = await client.ask(COMPLETIONS, {"prompt": "Once upon", "max_tokens": 12, "return_token_ids": True, **GREEDY})
        assert second["usage"]["input_tokens"] == whole.prompt_tokens + 6
        assert second["usage"]["input_token_details"]["cached_tokens"] == whole.prompt_tokens + 5
        assert (text_of(first) + text_of(second)).replace("\ufffd", "") == whole.first.text.replace("\ufffd", "")


async def test_an_interrupted_answer_is_forgotten_behind_what_was_heard(chat: RealtimeClient, client: Client) -> None:
    await chat.say("hi")
    await chat.send("response.create", response=ENDLESS)
    item_id = await until_text(chat)
    await chat.send("response.cancel")
    done = (await chat.until("response.done"))[-1]["response"]
    assert done["status"] == "cancelled"
    heard = text_of(done)[:3]
    await chat.send("conversation.item.truncate", item_id=item_id, content_index=0, text_end=len(heard))
    await chat.until("conversation.item.truncated")
    await chat.say("stop")
    response = await chat.respond(max_output_tokens=8)
    roles = [("user", "hi"), ("assistant", heard), ("user", "stop")]
    messages = [{"role": role, "content": text} for role, text in roles if text]
    assert text_of(response) == (await client.ask(CHAT, {"messages": messages, "max_tokens": 8, **GREEDY})).first.text


async def test_a_client_that_vanishes_leaves_nothing(server: ServerProcess, client: Client) -> None:
    async with connected(server.url) as one:
        await one.say("hi")
        await one.send("response.create", response=ENDLESS)
        await until_text(one)
        transport = one.socket._conn.transport  # type: ignore[union-attr]
        assert transport is not None
        transport.abort()
        await client.until(lambda scrape: scrape.value("ringpost:http_realtime_connections") == 0)
        await client.idle()


@pytest.mark.parametrize("answering", [False, True])
async def test_a_signal_ends_connections_in_order(no_leaks: None, tiny: str, answering: bool) -> None:
    with running_server(tiny, *OPTIONS) as server:
        async with connected(server.url) as client:
            await client.say("hi")
            if answering:
                await client.send("response.create", response=GREEDY | {"max_output_tokens": 20})
                await until_text(client)
            server.process.send_signal(signal.SIGTERM)
            if answering:
                assert (await client.until("response.done"))[-1]["response"]["status"] == "incomplete"
            assert (await client.next("error"))["error"]["code"] == "shutting_down"
            assert await client.closed() == WSCloseCode.GOING_AWAY
        assert await asyncio.to_thread(server.wait) == 0
        assert "Traceback" not in server.stderr()
