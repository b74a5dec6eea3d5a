"""A user of a session and the streams beside it, as `ringpost bench sessions` has them."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

from msgspec.structs import replace

from ...ipc.messages.outputs import FinishReason
from ..frontend.async_llm import AsyncLLM
from ..frontend.session import Session
from ..tasks import first_of
from .launch import BenchmarkError
from .recovery_streams import Question, answers, questions
from .sessions_report import CHUNK_TOKENS, MARK, ROUND

_STREAM_TOKENS = 200


def chunk_of(chooser: random.Random, engine: AsyncLLM) -> list[int]:
    """Tokens that nobody has seen before."""
    return chooser.choices(range(engine.config.checkpoint.vocab_size), k=CHUNK_TOKENS)


class Heard:
    """What comes of a session. Times are in CLOCK_MONOTONIC.

    Attributes:
        times: when tokens of each chunk's answer came, an entry for each output.
        ended: when its last output came.
        reasons: why it ended.
    """

    def __init__(self) -> None:
        self.times: list[list[float]] = [[]]
        self.ended: list[float] = []
        self.reasons: list[FinishReason] = []
        self._news = asyncio.Event()

    async def listen(self, session: Session) -> None:
        """Take its outputs as they come, to its end."""
        async for output in session:
            now = time.monotonic()
            if output.outputs[0].token_ids:
                self.times[-1].append(now)
            if output.boundary is not None:
                self.reasons.append(output.boundary.finish_reason)
                self.ended.append(now)
                self.times.append([])
            self._news.set()

    async def times_of(self, chunk: int, count: int) -> list[float]:
        """When outputs with tokens of a chunk's answer came, once there are so many. BenchmarkError if it has fewer."""
        while len(self.times) <= chunk or len(self.times[chunk]) < count:
            if len(self.ended) > chunk:
                raise BenchmarkError(f"an answer ended before it was interrupted, by {self.reasons[chunk]!r}")
            self._news.clear()
            await self._news.wait()
        return self.times[chunk]


class Interrupter:
    """Interrupts answers, each at some moment of a step, with the next chunk right behind.

    Attributes:
        silence: seconds until the old answer's last output.
        first_token: seconds until the new answer's first token.
    """

    def __init__(self, engine: AsyncLLM, chooser: random.Random) -> None:
        self.silence: list[float] = []
        self.first_token: list[float] = []
        self._engine = engine
        self._chooser = chooser

    async def converse(self, turns: int) -> None:
        """A session of which so many answers are interrupted. Raises BenchmarkError, and what ends the session."""
        heard = Heard()
        async with await self._engine.open_session(answers(_STREAM_TOKENS)) as session:
            await first_of(heard.listen(session), self._talk(session, heard, turns))
        if heard.reasons != ["interrupt"] * turns:
            raise BenchmarkError(f"{turns} answers were interrupted, and ended by {', '.join(map(repr, heard.reasons))}")

    async def _talk(self, session: Session, heard: Heard, turns: int) -> None:
        await session.append(chunk_of(self._chooser, self._engine))
        for turn in range(turns):
            times = await heard.times_of(turn, MARK)
            step = max(after - before for before, after in pairwise(times))
            await asyncio.sleep(self._chooser.random() * step)  # nobody waits for a token to interrupt
            chunk, began = chunk_of(self._chooser, self._engine), time.monotonic()
            session.interrupt()
            appended = time.monotonic()
            await session.append(chunk)
            first, *_ = await heard.times_of(turn + 1, 1)
            self.silence.append(heard.ended[turn] - began)
            self.first_token.append(first - appended)


def rounds(turns: int) -> list[int]:
    """Turns of each session, when one has ROUND at most."""
    return [min(ROUND, turns - done) for done in range(0, turns, ROUND)]


async def grow(engine: AsyncLLM, chunks: int, chooser: random.Random) -> list[float]:
    """Seconds to the first token of each of so many chunks of one session."""
    found: list[float] = []
    async with await engine.open_session(answers(2)) as session:
        for _ in range(chunks):
            chunk, began = chunk_of(chooser, engine), time.monotonic()
            await session.append(chunk)
            output = await anext(session)
            found.append(time.monotonic() - began)
            while output.boundary is None:
                output = await anext(session)
    return found


@asynccontextmanager
async def streams_beside(engine: AsyncLLM, count: int) -> AsyncIterator[None]:
    """So many requests run, each followed by another when it ends. The block begins when each has got a token.

    Raises what a stream raises.
    """
    begun = [asyncio.Event() for _ in range(count)]
    asked = questions(count, _STREAM_TOKENS, engine.config.checkpoint.vocab_size)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(_stream(engine, *one)) for one in zip(asked, begun, strict=True)]
            for event in begun:
                await event.wait()
            yield
            for task in running:
                task.cancel()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


async def _stream(engine: AsyncLLM, question: Question, begun: asyncio.Event) -> None:
    """One after the other, for ever; the first one ends soon or late, so that not all begin anew at once."""
    prompt, params = question
    tokens = _STREAM_TOKENS // 2 + (37 * len(prompt) + 11 * (params.seed or 0)) % (_STREAM_TOKENS // 2)
    while True:
        async for _ in engine.generate(prompt, replace(params, max_tokens=tokens)):
            begun.set()
        tokens = _STREAM_TOKENS
