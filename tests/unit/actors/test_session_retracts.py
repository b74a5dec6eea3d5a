"""Retract and rewind: what stays in the context, on both sides, and what the consumer still gets."""

import pytest
from session_core import SessionCore, shown, taken, token_ids

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]


async def test_chunks_are_retracted_from_the_last_to_the_first(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("ab")
        await core.say(session, "xy", "length")
        assert len(taken(session)) == 1
        await session.append("cd")
        await session.append("e")
        await core.say(session, "uv")
        assert [shown(output)[0] for output in taken(session)] == ["uv"]
        await core.say(session, "w")
        assert session.retract() == 8, "the queued one"
        assert session.num_queued == 0
        assert session.retract() == 3, "the one that runs"
        assert [shown(output) for output in taken(session)] == [("", "interrupt", 3, False)]
        await core.settle()
        assert core.core_contexts[session.link.number] == session.context == token_ids("abx")
        assert session.interrupt(keep_tokens=0) == 3, "the answer before is not at hand any more"
        assert session.retract() == 0, "the answered one"
        assert taken(session) == []
        with pytest.raises(ValueError, match="no chunk to retract"):
            session.retract()
        await session.append("q")
        await core.settle()
        assert core.turns[session.link.number].context == token_ids("q")


async def test_retracting_takes_back_what_no_output_has_told(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("ab")
        await core.say(session, "x")
        assert len(taken(session)) == 1
        await core.say(session, "y", "length")
        assert session.retract() == 0
        assert [shown(output) for output in taken(session)] == [("", "interrupt", 0, False)]
        await core.settle()
        assert core.core_contexts[session.link.number] == []


async def test_nothing_of_a_retracted_chunk_is_told_however_many_there_were(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        for chunk, answer in (("ab", "xyz"), ("cd", "uvw")):
            await session.append(chunk)
            await core.say(session, answer, "length")
        assert [session.retract(), session.retract()] == [4, 0]
        assert [shown(output) for output in taken(session)] == [("", "interrupt", 0, False)] * 2


async def test_what_was_told_of_an_earlier_chunk_is_still_its_answer_when_that_is_retracted(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("ab")
        await session.append("cd")
        await core.say(session, "x")
        assert [shown(output)[0] for output in taken(session)] == ["x"]
        await core.say(session, "yz", "length")
        await core.say(session, "uv")
        assert [session.retract(), session.retract()] == [4, 0]
        first, second = taken(session)
        assert (shown(first), shown(second)) == (("", "interrupt", 0, False), ("", "interrupt", 0, False))
        assert first.boundary
        assert first.boundary.num_tokens == 1


async def test_retracting_what_was_told_but_for_its_end(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("ab")
        await core.say(session, "xy")
        assert len(taken(session)) == 1
        await core.say(session, [], "length")
        assert session.retract() == 0
        assert [shown(output) for output in taken(session)] == [("", "interrupt", 0, False)]


@pytest.mark.parametrize(("length", "told"), [(7, "u"), (6, ""), (3, ""), (1, "")])
async def test_what_is_rewound_is_not_told_any_more(tiny: str, length: int, told: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        for chunk, answer in (("ab", "xyz"), ("cd", "uvw")):
            await session.append(chunk)
            await core.say(session, answer, "length")
        session.rewind(length)
        first = ("xyz", "length", 4) if length > 4 else ("x" if length == 3 else "", "interrupt", length)
        assert [shown(output) for output in taken(session)] == [(*first, False), (told, "interrupt", length, False)]
        assert session.interrupt() == length, "the answer is not at hand any more"


async def test_rewinding_to_anywhere(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open()
        await session.append("abcd")
        with pytest.raises(ValueError, match="must be idle"):
            session.rewind(0)
        await core.say(session, "xyz", "length")
        with pytest.raises(ValueError, match="from 0 to 6"):
            session.rewind(7)
        session.rewind(6)
        session.rewind(2)
        await core.settle()
        assert core.core_contexts[session.link.number] == session.context == token_ids("ab")
        await session.append("q")
        await core.settle()
        assert core.turns[session.link.number].add.base == 2
        assert session.retract() == 2
        assert session.retract() == 0
