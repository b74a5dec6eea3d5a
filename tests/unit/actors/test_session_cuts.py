"""Interrupt and fork: what stays in the context, on both sides, and what the consumer gets."""

import gc
from typing import Any

import pytest
from session_core import SessionCore, deltas, shown, taken, token_ids

from ringpost import RequestOutputKind
from ringpost.actors.frontend.live_request import LiveRequest
from ringpost.ipc.messages.requests import AddRequest, Fork, Truncate

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


@pytest.mark.parametrize(
    ("keep", "text", "kept"),
    [
        ({}, "", "xy"),
        ({"keep_tokens": 0}, "", ""),
        ({"keep_tokens": 1}, "", "x"),
        ({"keep_tokens": 3}, "z", "xyz"),
        ({"keep_chars": 3}, "z", "xyz"),
        ({"keep_chars": 1}, "", "x"),
    ],
)
async def test_an_interrupted_answer(tiny: str, keep: dict[str, int], text: str, kept: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("ab")
        await session.append("c")
        await core.say(session, "xy")
        assert [shown(output)[0] for output in taken(session)] == ["xy"]
        await core.say(session, "zw")
        assert session.interrupt(**keep) == 2 + len(kept)
        (output,) = taken(session)
        assert shown(output) == (text, "interrupt", 2 + len(kept), False)
        assert output.boundary is not None
        assert output.boundary.num_tokens == len(kept)
        core.generate(session, "late")  # what the core has made meanwhile is nobody's
        core.deliver()
        await core.settle()
        assert core.turns[session.link.number].context == token_ids("ab" + kept + "c")
        assert session.context == token_ids("ab" + kept + "c")


@pytest.mark.parametrize("lag", ["taken", "not taken"])
async def test_an_answer_that_has_ended_is_cut_likewise(tiny: str, lag: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("ab")
        await core.say(session, "xyzw", "length")
        if lag == "taken":
            assert [shown(output) for output in taken(session)] == [("xyzw", "length", 5, False)]
        assert session.interrupt(keep_chars=2) == 4
        left = [] if lag == "taken" else [("xy", "interrupt", 4, False)]
        assert [shown(output) for output in taken(session)] == left
        await core.settle()
        assert core.core_contexts[session.link.number] == session.context == token_ids("abxy")
        assert Truncate(session.link.number, 4) in core.received
        assert session.interrupt(keep_tokens=1) == 3
        assert session.interrupt() == 3
        await session.append("c")
        await core.settle()
        assert core.turns[session.link.number].context == token_ids("abxc")


async def test_keeping_all_of_an_answer_that_has_ended_changes_nothing(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        for keep in ({"keep_tokens": 3}, {"keep_chars": 2}):
            await session.append("a", keep_last_token=True)
            await core.say(session, "xy", "stop")
            length = session.context_length
            assert session.interrupt(**keep) == length
            assert [shown(output) for output in taken(session)] == [("xy", "stop", length, False)]


@pytest.mark.parametrize("keep", [{"keep_tokens": 3}, {"keep_chars": 3}])
@pytest.mark.parametrize("ended", [None, "length"])
@pytest.mark.parametrize("lag", [False, True])
async def test_as_much_is_kept_whether_the_answer_has_just_ended_or_not(
    tiny: str, keep: dict[str, int], ended: Any, lag: bool
) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("ab")
        await core.say(session, "xyz", ended)
        if not lag:
            taken(session)
        assert session.interrupt(**keep) == 5
        outputs = taken(session)
        if lag:
            assert [shown(output) for output in outputs] == [("xyz", ended or "interrupt", 5, False)]
        await session.append("c")
        await core.settle()
        assert core.turns[session.link.number].context == session.context == token_ids("abxyzc")


async def test_a_late_interruption_without_a_number_leaves_a_told_answer_as_it_is(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        for reason in ("stop", "length"):
            session = core.open()
            await session.append("ab")
            await core.say(session, "xyz", reason)
            length = session.context_length
            assert len(taken(session)) == 1
            assert session.interrupt() == session.context_length == length


async def test_tokens_of_a_hidden_stop_string_are_kept_on_demand(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open(deltas(stop="ST"))
        await session.append("q")
        await core.say(session, "abSTz")
        assert session.interrupt(keep_chars=2) == 3
        assert session.interrupt(keep_tokens=3) == 4
        (output,) = taken(session)
        assert (output.outputs[0].token_ids, shown(output)[1:3]) == (token_ids("abS"), ("interrupt", 4))
        assert session.context == token_ids("qabS")


async def test_an_idle_session_holds_its_context_once(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("ab")
        await core.say(session, "xyz", "length")
        (output,) = taken(session)
        assert not [one for one in gc.get_referrers(output.prompt_token_ids) if isinstance(one, dict | LiveRequest)]
        assert session.interrupt(keep_tokens=1) == 3, "the answer is at hand"


async def test_a_character_of_two_tokens_is_kept_whole_or_not_at_all(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        for characters, tokens in ((0, 0), (1, 1), (2, 3), (3, 4)):
            session = core.open()
            await session.append("a")
            await core.say(session, "xéy")
            assert session.interrupt(keep_chars=characters) == 1 + tokens
            assert [shown(output)[0] for output in taken(session)] == ["xéy"[:characters]]


async def test_text_held_back_for_a_stop_string_can_be_kept(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open(deltas(stop="yz!"))
        await session.append("a")
        await core.say(session, "xyz")
        assert [shown(output)[0] for output in taken(session)] == ["x"]
        with pytest.raises(ValueError, match="keep_chars must be an integer from 0 to 1"):
            session.interrupt(keep_chars=2)
        assert session.interrupt(keep_tokens=2) == 3
        assert [shown(output) for output in taken(session)] == [("y", "interrupt", 3, False)]


async def test_what_was_told_stays_as_it_was(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open(deltas(output_kind=RequestOutputKind.CUMULATIVE, logprobs=0))
        await session.append("a")
        await core.say(session, "xyz")
        (told,) = taken(session)
        session.interrupt(keep_tokens=1)
        (last,) = taken(session)
        for output, text in ((told, "xyz"), (last, "x")):
            (one,) = output.outputs
            assert (one.text, list(one.token_ids)) == (text, token_ids(text))
            assert one.logprobs is not None
            assert [next(iter(place)) for place in one.logprobs] == token_ids(text)
            assert one.cumulative_logprob == -0.5 * len(text)


async def test_interrupting_before_a_word_was_said(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        assert session.interrupt() == 0
        wrong: tuple[dict[str, Any], ...] = ({"keep_tokens": 5}, {"keep_chars": "x"}, {"keep_tokens": 0, "keep_chars": 0})
        for keep in wrong:
            with pytest.raises(ValueError, match=r"must be an integer from 0 to 0|exclude each other"):
                session.interrupt(**keep)
        await session.append("ab")
        assert session.interrupt() == 2, "not sent yet"
        await session.append("c")
        await core.settle()
        assert session.interrupt() == 3, "sent"
        assert [shown(output) for output in taken(session)] == [("", "interrupt", 2, False), ("", "interrupt", 3, False)]
        await session.append("d")
        await core.settle()
        assert core.turns[session.link.number].context == session.context == token_ids("abcd")


@pytest.mark.parametrize("keep", [{"keep_tokens": 4}, {"keep_tokens": -1}, {"keep_chars": 4}, {"keep_tokens": True}])
async def test_more_than_has_come_is_refused(tiny: str, keep: dict[str, Any]) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("a")
        await core.say(session, "xyz")
        with pytest.raises(ValueError, match=f"{next(iter(keep))} must be an integer from 0 to 3"):
            session.interrupt(**keep)
        with pytest.raises(ValueError, match="exclude each other"):
            session.interrupt(keep_tokens=1, keep_chars=1)
        await core.say(session, "w", "length")
        assert shown(taken(session)[-1])[1] == "length", "it goes on"


async def test_a_fork_goes_its_own_way(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        parent = core.open(deltas(temperature=0.5))
        await parent.append("ab")
        await core.say(parent, "xy", "length")
        child = await parent.fork(session_id="child", seed=77)
        other = await parent.fork()
        assert (child.session_id, child.options.params.seed, other.options.params.seed) == ("child", 77, None)
        assert other.options.params.temperature == 0.5
        for session, text in ((parent, "p"), (child, "c"), (other, "o")):
            await session.append(text)
        await core.settle()
        for session, text in ((parent, "p"), (child, "c"), (other, "o")):
            assert core.turns[session.link.number].context == session.context == token_ids("abx" + text)
            assert core.turns[session.link.number].add.base == 3
        seeds = {core.turns[session.link.number].add.params.seed for session in (parent, child, other)}
        assert len(seeds) == 3
        assert [output.request_id for output in taken(child)] == []
        assert child.interrupt() == 4
        assert (child.retract(), child.retract()) == (3, 0), "also the chunk from before"
        assert parent.context == token_ids("abxp")


async def test_a_fork_of_a_session_that_speaks(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        parent = core.open()
        await parent.append("ab")
        early = await parent.fork()
        await core.say(parent, "xy")
        await parent.append("queued")
        late = await parent.fork()
        assert (early.context, late.context) == (token_ids("ab"), token_ids("abxy"))
        for session in (early, late):
            await session.append("c")
        await core.settle()
        assert [one.length for one in core.received if isinstance(one, Fork)] == [4]
        assert core.turns[early.link.number].context == token_ids("abc")
        assert core.turns[late.link.number].context == token_ids("abxyc")
        await core.say(parent, "z", "length")
        assert parent.context == token_ids("abxyqueued")


async def test_a_fork_of_what_a_restarted_core_does_not_know(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        parent = core.open()
        await parent.append("ab")
        await core.say(parent, "xy", "length")
        child = await parent.fork()
        core.die()
        grandchild = await child.fork()
        for session in (child, grandchild):
            await session.append("c")
        await core.settle()
        adds = [one for one in core.received if isinstance(one, AddRequest)][1:]
        assert [(one.base, one.prompt) for one in adds] == [(0, token_ids("abxc"))] * 2
