"""Idle sessions of `ringpost bench sessions`: what they cost, and whether they answer when they are asked again."""

import gc
import os
import random
import re
import time
from pathlib import Path

from ..errors import EngineGenerateError
from ..frontend.async_llm import AsyncLLM
from ..frontend.session import Session
from .recovery_streams import answers
from .sessions_report import CHUNK_TOKENS, Idle
from .sessions_talk import chunk_of

_BLOCK = 16  # tokens
_CONTEXT_CHUNKS = 4  # whose tokens are the first chunk of a session
_BLOCKS = _CONTEXT_CHUNKS * CHUNK_TOKENS // _BLOCK + 1  # of a session after its first turn


def pool_of(sessions: int) -> dict[str, int]:
    """Options of an engine that has blocks for so many, and for the turn of one."""
    return {"block_size": _BLOCK, "num_blocks_override": (sessions + 1) * _BLOCKS}


async def measure_idle(engine: AsyncLLM, count: int, chooser: random.Random) -> Idle:
    """Open so many sessions and have each answer; then ask each again, one after the other."""
    sessions = [await engine.open_session(answers(2))]
    try:
        await _first_turns(engine, sessions, chooser)  # what is made only once is there
        before = _memory(engine)
        rest = [await engine.open_session(answers(2)) for _ in range(count - 1)]
        sessions += rest
        await _first_turns(engine, rest, chooser)
        after, now = _memory(engine), await engine.describe()
        waits = [await _ask_again(session, chunk_of(chooser, engine)) for session in sessions]
    finally:
        for session in sessions:
            session.close()
    frontend, core = ((new - old) / max(count - 1, 1) for new, old in zip(after, before, strict=True))
    answered = [wait for wait in waits if wait is not None]
    return Idle(
        answered=len(answered),
        longest_first_token=max(answered, default=0.0),
        num_blocks=now.num_blocks,
        used_blocks=now.num_blocks - now.free_blocks,
        evicted=now.sessions_evicted,
        frontend_bytes=frontend,
        core_bytes=core,
    )


async def _first_turns(engine: AsyncLLM, sessions: list[Session], chooser: random.Random) -> None:
    for session in sessions:
        await session.append([token for _ in range(_CONTEXT_CHUNKS) for token in chunk_of(chooser, engine)])
    for session in sessions:
        await _rest_of_answer(session)


async def _ask_again(session: Session, chunk: list[int]) -> float | None:
    """Seconds to the first token; None for a session that ends instead."""
    began = time.monotonic()
    try:
        await session.append(chunk)
        output = await anext(session)
        waited = time.monotonic() - began
        if output.boundary is None:
            await _rest_of_answer(session)
    except (EngineGenerateError, ValueError):
        return None
    return waited


async def _rest_of_answer(session: Session) -> None:
    while (await anext(session)).boundary is None:
        pass


def _memory(engine: AsyncLLM) -> tuple[int, int]:
    """Bytes of this process and of the core, without what processes share."""
    gc.collect()
    core = next(process.pid for process in engine.process_table() if process.kind == "engine_core")
    return _anonymous_bytes(os.getpid()), _anonymous_bytes(core)


def _anonymous_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (kilobytes,) = re.findall(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)
    return 1024 * int(kilobytes)
