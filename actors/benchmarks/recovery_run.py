"""One run of `ringpost bench recovery`: streams of a real engine, and the fault that strikes its processes meanwhile."""

import asyncio
import os
import time
from collections import Counter

from msgspec.structs import replace

from ..errors import EngineGenerateError
from ..frontend.async_llm import AsyncLLM
from ..tasks import all_of
from .launch import BenchmarkError
from .recovery_report import FAULTS, MARK, UNDISTURBED, Fault, Result
from .recovery_streams import Question, Stream, questions

_ADVICE = "hang_timeout may be too short for this model on this machine"


class Run:
    """The streams once. When each has got MARK tokens, the fault strikes, and a new request comes.

    Attributes:
        streams: what they got.
        pids: the processes that the engine had.
    """

    def __init__(self, engine: AsyncLLM, fault: str) -> None:
        """`fault` is a key of FAULTS, or UNDISTURBED."""
        self.streams: list[Stream] = []
        self.pids: set[int] = set()
        self._engine = engine
        self._fault = fault
        self._newcomer = Stream()
        self._struck = asyncio.Event()
        self._streams_struck = 0
        self._replaced: list[str] = []

    async def measure(self, streams: int, tokens: int) -> None:
        """Ask for so many streams of so many tokens each.

        Raises ValueError when they do not fit the model, BenchmarkError when an undisturbed run was disturbed or a fault
        cannot strike, and EngineDeadError.
        """
        checkpoint = self._engine.config.checkpoint
        *asked, new = questions(streams + 1, tokens, checkpoint.vocab_size)
        room = checkpoint.max_model_len - max(len(prompt) for prompt, _ in asked)
        if tokens > room:
            raise ValueError(f"tokens must be at most {room} with this model and the longest prompt, got {tokens}")
        self.streams = [Stream() for _ in asked]
        before = Counter(self._engine.stats.restarts)
        await self._engine.reset_prefix_cache()
        follow = [self._follow(question, stream) for question, stream in zip(asked, self.streams, strict=True)]
        await all_of([*follow, self._come(new)])
        self.pids |= set(self._pids().values())
        restarts = Counter(self._engine.stats.restarts) - before
        self._replaced = [f"{actor} {reason}" for actor, reason in restarts.elements()]
        if self._fault == UNDISTURBED and (events := self._replaced + self._errors()):
            raise BenchmarkError(f"the undisturbed run was disturbed: {'; '.join(events)}; {_ADVICE}")

    def result(self, wanted: list[Stream]) -> Result:
        """What it came to, against the same streams undisturbed."""
        pairs = list(zip(self.streams, wanted, strict=True))
        return Result(
            fault=self._fault,
            longest_pause_s=max(stream.longest_pause for stream in self.streams),
            new_request_s=self._newcomer.first_token_seconds,
            tokens_lost=sum(stream.lost(right) for stream, right in pairs),
            tokens_changed=sum(stream.changed(right) for stream, right in pairs),
            streams_failed=sum(bool(stream.error) for stream in self.streams),
            streams_struck=self._streams_struck,
            replaced=self._replaced,
            errors=self._errors(),
        )

    async def _come(self, question: Question) -> None:
        """The new request, of which only the first token matters."""
        prompt, params = question
        await self._struck.wait()
        await self._follow((prompt, replace(params, max_tokens=1)), self._newcomer)

    async def _follow(self, question: Question, stream: Stream) -> None:
        """Read a request to its end. Only the engine's death is raised."""
        stream.began = time.monotonic()
        try:
            async for output in self._engine.generate(*question):
                stream.times.append(time.monotonic())
                stream.tokens += output.outputs[0].token_ids
                self._strike_in_time()
        except EngineGenerateError as error:
            stream.error = str(error)
        stream.ended = True
        self._strike_in_time()

    def _strike_in_time(self) -> None:
        """To be called at news of a stream."""
        if self._struck.is_set() or not all(stream.ended or len(stream.tokens) >= MARK for stream in self.streams):
            return
        self._streams_struck = sum(not stream.ended for stream in self.streams)
        if self._fault != UNDISTURBED:
            self._strike(FAULTS[self._fault])
        self._struck.set()

    def _strike(self, fault: Fault) -> None:
        pids = self._pids()
        self.pids |= set(pids.values())
        if missing := [kind for kind in fault.victims if kind not in pids]:
            raise BenchmarkError(f"{self._fault}: there is no {missing[0]} to strike, it is being replaced; {_ADVICE}")
        for kind in fault.victims:
            os.kill(pids[kind], fault.signal)

    def _pids(self) -> dict[str, int]:
        """The engine's processes by kind, without one that is still to be started."""
        return {process.kind: process.pid for process in self._engine.process_table()[1:] if process.pid}

    def _errors(self) -> list[str]:
        return [stream.error for stream in (*self.streams, self._newcomer) if stream.error]
