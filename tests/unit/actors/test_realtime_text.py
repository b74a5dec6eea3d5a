"""Sessions in mode text: the model goes on from the texts of items as they are."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from api_client import Json
from realtime_client import RealtimeClient, connected, text_of
from scripted_engine import End, ScriptedEngine, Step, token_ids
from served_app import AppClient

from ringpost.ipc.messages.requests import AddRequest


@pytest_asyncio.fixture
async def text(api: AppClient) -> AsyncIterator[RealtimeClient]:
    """A connection in this mode."""
    async with connected(api.url, "?mode=text") as client:
        yield client


def sent(engine: ScriptedEngine, number: int) -> tuple[int, list[int]]:
    """How much of its context the core was to keep for a turn, and what came to it."""
    message: AddRequest = engine.requests[number].message
    return message.base, message.prompt


async def read(engine: ScriptedEngine, number: int, answer: Step) -> tuple[int, str]:
    """The same for the turn after this answer, and the whole text that the model then has before it."""
    base, prompt = sent(engine, number)
    before = engine.requests[number - 1].message.prompt
    assert not isinstance(answer, Exception)
    said = answer if isinstance(answer, list) else token_ids(answer.text if isinstance(answer, End) else answer)
    return base, "".join(await engine.token_texts([*[*before, *said][:base], *prompt]))


@pytest.mark.asyncio
@pytest.mark.parametrize("query", ["?mode=text", ""])
async def test_texts_stand_one_behind_the_other(api: AppClient, engine: ScriptedEngine, query: str) -> None:
    engine.answers[None] = [End("cd", "stop")]
    async with connected(api.url, query) as client:
        if not query:
            assert (await client.ask("session.update", session={"mode": "text"}))["session"]["mode"] == "text"
        await client.say("a")
        await client.say("b", role="assistant")
        assert text_of(await client.respond()) == "cd"
        await client.say("e")
        await client.respond()
    assert sent(engine, 0) == (0, token_ids("ab"))
    assert sent(engine, 1) == (4, token_ids("e")), "the token that ended the answer is no text"


@pytest.mark.asyncio
async def test_an_answer_that_reached_its_length_goes_on(text: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = [End("cd", "length")]
    await text.say("ab")
    await text.respond()
    await text.respond()
    await text.say("e")
    await text.respond()
    assert sent(engine, 1) == (3, token_ids("d")), "the last token, which was never computed"
    assert sent(engine, 2) == (5, token_ids("de"))


@pytest.mark.asyncio
async def test_an_answer_that_ended_by_itself_can_go_on(text: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = [End("cd", "stop")]
    await text.say("ab")
    await text.respond()
    await text.respond()
    assert sent(engine, 1) == (3, token_ids("d")), "a turn is at least one token"


@pytest.mark.asyncio
async def test_a_stop_string_is_no_part_of_the_text(text: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["cdXYef"]
    await text.say("ab")
    assert text_of(await text.respond(stop="XY")) == "cd"
    await text.say("g")
    engine.answers[None] = [End("h", "stop")]
    await text.respond()
    assert sent(engine, 1) == (4, token_ids("g"))


SHOWN = {"include_stop_str_in_output": True}
(X,) = token_ids("X")
ENDS: list[tuple[Json, Step, str, int]] = [
    ({"stop": "XY", **SHOWN}, "cdXY", "cdXY", 5),
    ({"stop_token_ids": [X], **SHOWN}, End("cd", "stop", stop_reason=X), "cdX", 4),
    ({"stop_token_ids": [X]}, End("cd", "stop", stop_reason=X), "cd", 4),
    ({"stop": "he"}, " the", " t", 2),
    ({}, End("cd", "repetition"), "cd", 3),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("fields", "step", "told", "base"), ENDS)
async def test_the_model_goes_on_from_what_was_told(
    text: RealtimeClient, engine: ScriptedEngine, fields: Json, step: Step, told: str, base: int
) -> None:
    if isinstance(step, str):
        step = await engine.token_ids(step, add_special_tokens=False)
    engine.answers[None] = [step]
    await text.say("ab")
    assert text_of(await text.respond(**fields)) == told
    engine.answers[None] = [End("f", "stop")]
    await text.say("e")
    await text.respond()
    assert await read(engine, 1, step) == (base, f"ab{told}e")


@pytest.mark.asyncio
async def test_a_cancelled_answer_keeps_what_was_told_of_a_token(text: RealtimeClient, engine: ScriptedEngine) -> None:
    step = await engine.token_ids("cd the", add_special_tokens=False)
    engine.answers[None] = [step]
    await text.say("ab")
    await text.send("response.create", response={"stop": "he fox"})
    await text.until("response.output_text.delta")
    await text.send("response.cancel")
    assert text_of((await text.until("response.done"))[-1]["response"]) == "cd t"
    engine.answers[None] = [End("f", "stop")]
    await text.say("e")
    await text.respond()
    assert await read(engine, 1, step) == (4, "abcd te")


@pytest.mark.asyncio
async def test_an_answer_that_has_become_the_first_item_begins_a_text(
    text: RealtimeClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def with_bos(text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + token_ids(text)

    monkeypatch.setattr(engine, "token_ids", with_bos)
    engine.answers[None] = ["cd"]
    user = await text.say("ab")
    await text.send("response.create")
    await text.until("response.output_text.delta")
    await text.send("conversation.item.delete", item_id=user)
    await text.next("conversation.item.deleted")
    engine.requests[0].say(End("e", "length"))
    await text.until("response.done")
    engine.answers[None] = [End("f", "stop")]
    await text.respond()
    assert sent(engine, 1) == (1, token_ids("cde"))


@pytest.mark.asyncio
async def test_an_answer_cut_short_stays_cut(text: RealtimeClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = []
    await text.say("ab")
    await text.send("response.create")
    (await engine.nth_request(0)).say("cdef")
    item_id = (await text.until("response.output_text.delta"))[-1]["item_id"]
    await text.send("response.cancel")
    await text.send("conversation.item.truncate", item_id=item_id, content_index=0, text_end=1)
    await text.until("conversation.item.truncated")
    await text.say("g")
    engine.answers[None] = [End("h", "stop")]
    await text.respond()
    assert sent(engine, 1) == (3, token_ids("g"))
    await text.send("conversation.item.delete", item_id=item_id)
    await text.next("conversation.item.deleted")
    await text.respond()
    assert sent(engine, 2) == (2, token_ids("gh")), "what stands behind a deletion is read anew"


@pytest.mark.asyncio
async def test_items_without_text(text: RealtimeClient, engine: ScriptedEngine) -> None:
    await text.say("")
    error = await text.refused("response.create")
    assert (error["param"], "must hold text" in error["message"]) == ("conversation", True)
    assert engine.requests == []


@pytest.mark.asyncio
async def test_what_has_no_place_without_a_template(text: RealtimeClient, engine: ScriptedEngine) -> None:
    error = await text.refused("session.update", session={"instructions": "Be brief."})
    assert error["param"] == "session.instructions"
    error = await text.refused("response.create", response={"instructions": "Be brief."})
    assert error["param"] == "response.instructions"
    error = await text.refused("response.create")
    assert (error["param"], "has no items" in error["message"]) == ("conversation", True)
    await text.say("ab")
    assert (await text.refused("session.update", session={"mode": "chat"}))["param"] == "session.mode"
    assert engine.requests == []
