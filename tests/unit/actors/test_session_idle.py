"""What a session's idle timeout counts from, and what holds it."""

import asyncio
from typing import Any

import pytest
from session_core import SessionCore, shown

from ringpost import Session, SessionTimeout

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]

SOON = 0.05  # seconds


async def outlive(core: SessionCore) -> None:
    """Wait as long as another session may be idle, which is longer than SOON."""
    with pytest.raises(SessionTimeout):
        await core.open(session_id="other", idle_timeout=4 * SOON).collector.get()


async def test_a_busy_session_is_not_idle(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open(idle_timeout=SOON)
        with session.busy():
            session.touch()
            with session.busy():
                pass
            await outlive(core)
        await session.append("a")
        await core.say(session, "x", "length")
        assert shown(await session.collector.get())[0] == "x"
        with pytest.raises(SessionTimeout):
            await session.collector.get()
        with session.busy():
            pass


async def test_tokenising_a_chunk_is_no_idleness(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SessionCore(tiny).running() as core:
        session = core.open(idle_timeout=SOON)
        encode = core.sessions.inputs.encode

        async def slow(*given: Any, **more: Any) -> list[int]:
            await outlive(core)
            return await encode(*given, **more)

        monkeypatch.setattr(core.sessions.inputs, "encode", slow)
        assert await session.append("a") == 0
        appending = asyncio.create_task(session.append("b"))
        await core.say(session, "x", "length")
        assert await appending == 1


async def test_taking_an_answer_begins_the_time_anew(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SessionCore(tiny).running() as core:
        ended = list[str]()
        forget = core.sessions.forget

        def note(session: Session) -> None:
            ended.append(session.session_id)
            forget(session)

        monkeypatch.setattr(core.sessions, "forget", note)
        taker = core.open(session_id="taker", idle_timeout=SOON)
        await taker.append("a")
        await core.say(taker, "x", "length")
        other = core.open(session_id="other", idle_timeout=SOON)
        assert shown(await taker.collector.get())[0] == "x"
        for session in (taker, other):
            with pytest.raises(SessionTimeout):
                await session.collector.get()
        assert ended == ["other", "taker"]


async def test_no_session_is_idle_while_it_is_answered(tiny: str) -> None:
    async with SessionCore(tiny).running() as core:
        busy, idle = core.open(idle_timeout=0.01), core.open(idle_timeout=0.05)
        await busy.append("a")
        with pytest.raises(SessionTimeout):
            await idle.collector.get()  # which takes longer than the other one's time
        await core.say(busy, "x", "length")
        assert shown(await busy.collector.get())[0] == "x"
        with pytest.raises(SessionTimeout):
            await busy.collector.get()


async def test_idleness_ends_whoever_waits_to_append(tiny: str) -> None:
    async with SessionCore(tiny, max_queued_chunks=1).running() as core:
        session = core.open(idle_timeout=0.02)
        await session.append("a")
        await core.say(session, "x", "length")  # which nobody takes
        await session.append("b")
        with pytest.raises(SessionTimeout):
            await session.append("c")
