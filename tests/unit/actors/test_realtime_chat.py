"""Conversations over /v1/realtime: items, responses, what of them the model reads, and interruptions."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from api_client import Json
from realtime_client import RealtimeClient, connected, text_of
from scripted_engine import End, ScriptedEngine, token_ids
from served_app import AppClient

from ringpost.ipc.messages.requests import AddRequest

RESPONSE = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]


@pytest_asyncio.fixture
async def chat(api: AppClient) -> AsyncIterator[RealtimeClient]:
    """A connection."""
    async with connected(api.url) as client:
        yield client


async def rendered(engine: ScriptedEngine, *messages: tuple[str, str]) -> list[int]:
    """The prompt that the model's template makes of a conversation."""
    return (await engine.chat_prompt([{"role": role, "content": text} for role, text in messages]))["prompt_token_ids"]


def read(engine: ScriptedEngine, number: int) -> AddRequest:
    """What the core was sent for a response."""
    return engine.requests[number].message


@pytest.mark.asyncio
async def test_a_response_is_told_by_events_in_order(chat: RealtimeClient, engine: ScriptedEngine) -> None:
    user = await chat.say("hi")
    engine.cached = [3]
    await chat.send("response.create", response={"metadata": {"topic": "t"}})
    events = await chat.until("response.done")
    assert [event["type"] for event in events] == RESPONSE
    created, _, added, _, delta, told, part, done, output, ended = events
    response = ended["response"]
    item = {
        "id": added["item"]["id"],
        "object": "realtime.item",
        "type": "message",
        "status": "incomplete",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hello!"}],
    }
    prompt = len(await rendered(engine, ("user", "hi")))
    assert created["response"] | {"status": "incomplete"} == response | {"output": [], "status_details": None, "usage": None}
    assert response["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    assert response["metadata"] == {"topic": "t"}
    assert response["usage"] == {
        "total_tokens": prompt + 6,
        "input_tokens": prompt,
        "output_tokens": 6,
        "input_token_details": {"cached_tokens": 3, "text_tokens": prompt},
        "output_token_details": {"text_tokens": 6},
    }
    assert added["previous_item_id"] == done["previous_item_id"] == user
    assert added["item"] == item | {"status": "in_progress", "content": []}
    assert done["item"] == output["item"] == response["output"][0] == item
    assert (delta["delta"], told["text"], part["part"]) == ("Hello!", "Hello!", {"type": "text", "text": "Hello!"})
    place = {"response_id": response["id"], "item_id": item["id"], "output_index": 0, "content_index": 0}
    assert all(place.items() <= event.items() for event in (delta, told, part))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [("stop", "completed", None), ("repetition", "completed", None), ("length", "incomplete", "max_output_tokens")],
)
async def test_how_a_response_ends(
    chat: RealtimeClient, engine: ScriptedEngine, reason: str, status: str, why: str | None
) -> None:
    engine.answers[None] = [End("so", reason)]  # type: ignore[arg-type]
    await chat.say("hi")
    response = await chat.respond()
    assert (response["status"], response["output"][0]["status"]) == (status, "completed" if why is None else "incomplete")
    assert response["status_details"] == (None if why is None else {"type": status, "reason": why})


@pytest.mark.asyncio
async def test_the_next_turn_costs_only_what_is_new(chat: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = [End("yes", "stop")]
    await chat.send("session.update", session={"instructions": "Be brief."})
    await chat.next("session.updated")
    await chat.say("one")
    await chat.respond()
    await chat.say("two")
    await chat.respond()
    first = await rendered(engine, ("system", "Be brief."), ("user", "one"))
    second = await rendered(engine, ("system", "Be brief."), ("user", "one"), ("assistant", "yes"), ("user", "two"))
    assert (read(engine, 0).base, read(engine, 0).prompt) == (0, first)
    kept = len(first) + len("yes")  # the token that ended the answer was never computed
    assert second[:kept] == first + token_ids("yes")
    assert (read(engine, 1).base, read(engine, 1).prompt) == (kept, second[kept:])


@pytest.mark.asyncio
async def test_a_cancelled_answer_is_what_was_sent_of_it(chat: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = []
    await chat.say("hi")
    await chat.send("response.create")
    request = await engine.nth_request(0)
    request.say("Once upon")
    await chat.until("response.output_text.delta")
    await chat.send("response.cancel")
    done = (await chat.until("response.done"))[-1]["response"]
    assert (done["status"], done["status_details"]["reason"], text_of(done)) == ("cancelled", "client_cancelled", "Once upon")
    assert engine.sessions.core.aborted, "the core goes on"
    request.say(" a time")
    await chat.say("stop")
    engine.answers[None] = [End("ok", "stop")]
    await chat.respond()
    whole = await rendered(engine, ("user", "hi"), ("assistant", "Once upon"), ("user", "stop"))
    message = read(engine, 1)
    assert message.base >= len(await rendered(engine, ("user", "hi")))
    assert whole[message.base :] == message.prompt


@pytest.mark.asyncio
async def test_a_barge_in_sent_at_once(chat: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = []
    await chat.say("hi")
    await chat.send("response.create")
    (await engine.nth_request(0)).say("Once upon")
    item_id = (await chat.until("response.output_text.delta"))[-1]["item_id"]
    engine.answers[None] = [End("ok", "stop")]
    await chat.send("response.cancel")
    await chat.send("conversation.item.truncate", item_id=item_id, content_index=0, text_end=4)
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "no"}]}
    await chat.send("conversation.item.create", item=item)
    await chat.send("response.create")
    await chat.until("response.done")
    truncated = await chat.next("conversation.item.truncated")
    assert (truncated["item_id"], truncated["content_index"], truncated["text_end"]) == (item_id, 0, 4)
    assert (await chat.until("response.done"))[-1]["response"]["status"] == "completed"
    whole = await rendered(engine, ("user", "hi"), ("assistant", "Once"), ("user", "no"))
    message = read(engine, 1)
    assert message.base == len(await rendered(engine, ("user", "hi"))) + len("Once")
    assert whole[message.base :] == message.prompt


@pytest.mark.asyncio
async def test_an_answer_stopped_before_its_first_text_is_not_read(chat: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = []
    await chat.say("hi")
    await chat.send("response.create")
    await engine.nth_request(0)
    await chat.until("response.content_part.added")
    await chat.send("response.cancel")
    assert text_of((await chat.until("response.done"))[-1]["response"]) == ""
    engine.answers[None] = [End("ok", "stop")]
    await chat.say("yo")
    await chat.respond()
    message = read(engine, 1)
    assert (await rendered(engine, ("user", "hi"), ("user", "yo")))[message.base :] == message.prompt


@pytest.mark.asyncio
async def test_items_are_put_in_taken_out_and_shown(chat: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = [End("ok", "stop")]
    await chat.say("two")
    answer = (await chat.respond())["output"][0]["id"]
    await chat.say("one", role="system", previous_item_id="root")
    await chat.say("between", role="assistant", previous_item_id=answer)
    shown = await chat.ask("conversation.item.retrieve", item_id=answer)
    assert (shown["type"], shown["item"]["content"]) == ("conversation.item.retrieved", [{"type": "output_text", "text": "ok"}])
    assert await chat.ask("conversation.item.delete", item_id=answer) | {"event_id": ""} == {
        "type": "conversation.item.deleted",
        "event_id": "",
        "item_id": answer,
    }
    assert (await chat.refused("conversation.item.retrieve", item_id=answer))["code"] == "item_not_found"
    await chat.respond()
    whole = await rendered(engine, ("system", "one"), ("user", "two"), ("assistant", "between"))
    message = read(engine, 1)
    assert message.base < len("<|im_start|>system"), "what was read stands behind something new"
    assert whole[message.base :] == message.prompt


@pytest.mark.asyncio
async def test_input_comes_word_by_word_also_during_an_answer(chat: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = []
    await chat.say("hi")
    await chat.send("response.create")
    await chat.until("response.content_part.added")
    for word in ("what ", "is ", "lost"):
        await chat.send("input_text_buffer.append", text=word)
    assert (await chat.ask("input_text_buffer.clear"))["type"] == "input_text_buffer.cleared"
    for word in ("what ", "is ", "this"):
        await chat.send("input_text_buffer.append", text=word)
    committed = await chat.ask("input_text_buffer.commit")
    added, _ = await chat.until("conversation.item.done")
    assert (committed["item_id"], committed["previous_item_id"]) == (added["item"]["id"], added["previous_item_id"])
    assert added["item"]["content"] == [{"type": "input_text", "text": "what is this"}]
    (await engine.nth_request(0)).say(End("ok", "stop"))
    await chat.until("response.done")
    engine.answers[None] = [End("that", "stop")]
    await chat.respond()
    message = read(engine, 1)
    assert (await rendered(engine, ("user", "hi"), ("assistant", "ok"), ("user", "what is this")))[
        message.base :
    ] == message.prompt


@pytest.mark.asyncio
async def test_what_a_response_asks_for_goes_for_it_alone(chat: RealtimeClient, engine: ScriptedEngine) -> None:
    session: Json = {"temperature": 0.5, "stop": "x", "max_output_tokens": 7}
    shown = (await chat.ask("session.update", session=session))["session"]
    assert session.items() <= shown.items()
    await chat.say("hi")
    await chat.respond(temperature=0.25, max_output_tokens="inf", instructions="Shout.")
    await chat.respond()
    first, second = (request.params for request in engine.requests)
    assert (first.temperature, first.stop, first.max_tokens) == (0.25, ("x",), None)
    assert (second.temperature, second.stop, second.max_tokens) == (0.5, ("x",), 7)
    assert read(engine, 0).prompt == await rendered(engine, ("system", "Shout."), ("user", "hi"))
