"""Engines with scripted workers and faults, and the answers that must come whatever befalls them."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from fault_driver import FaultDriver, Stream, follow
from fault_script import Fault, FaultScript
from faults import open_gate, script_of, scripted_workers, struck
from scripted_worker import BROKEN, tokens_of
from tiny_checkpoint import FIRST_BYTE_ID

from ringpost import LLM, AsyncLLM, RequestOutputCollector, SamplingParams

LONG = 80  # tokens of an answer that outlives a blow
STEP = 0.002  # seconds that a step takes

Asked: TypeAlias = tuple[list[int], SamplingParams]


class FaultyEngines:
    """Makes the engines of one test, whose processes follow its script."""

    def __init__(self, model: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._model, self._folder, self._patch = model, folder, patch
        self.script = FaultScript(log=os.devnull, gate="")

    @asynccontextmanager
    async def engine(self, *faults: Fault, step_seconds: float = STEP, **options: Any) -> AsyncIterator[AsyncLLM]:
        """A running engine. At its end, the workers must have found all plans in order."""
        async with AsyncLLM.from_engine_args(**self._prepared(faults, step_seconds, options)) as engine:
            yield engine
        self._check_plans()

    @contextmanager
    def offline(self, *faults: Fault, step_seconds: float = STEP, **options: Any) -> Iterator[LLM]:
        """The same for a program without an event loop."""
        with LLM(**self._prepared(faults, step_seconds, options)) as llm:
            yield llm
        self._check_plans()

    def _prepared(self, faults: Sequence[Fault], step_seconds: float, options: dict[str, Any]) -> dict[str, Any]:
        scripted_workers(self._patch)
        self.script = script_of(self._folder, self._patch, *faults, step_seconds=step_seconds)
        return {"model": self._model, "postmortem_dir": str(self._folder / "postmortem")} | options

    def _check_plans(self) -> None:
        assert BROKEN not in [strike.do for strike in self.script.strikes()]

    async def somebody_waits(self) -> None:
        """A process waits at the gate."""
        await struck(self.script)

    def go_on(self) -> None:
        """Let it go on."""
        open_gate(self.script)


def held_back(actor: str) -> Fault:
    """The first successor of an actor waits at the gate before it says Hello."""
    return Fault(do="wait", actor=actor, at=0, first_epoch=2)


def prompt_of(number: int, length: int = 20) -> list[int]:
    """Bytes below 100, different for different numbers."""
    return [10 + (7 * number + index) % 90 for index in range(length)]


def greedy(max_tokens: int | None = LONG, **more: Any) -> SamplingParams:
    """Each token hangs on all before it."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


def seeded(seed: int, max_tokens: int = LONG, **more: Any) -> SamplingParams:
    """Each token hangs on seed and position."""
    return SamplingParams(seed=seed, max_tokens=max_tokens, ignore_eos=True, **more)


def mixed(count: int, max_tokens: int = LONG) -> list[Asked]:
    """Greedy and seeded ones by turns, some with prompts that are shorter than a block."""
    return [
        (prompt_of(number, 5 + 9 * number), seeded(number, max_tokens) if number % 2 else greedy(max_tokens))
        for number in range(count)
    ]


def check_answer(asked: Asked, stream: Stream) -> None:
    """It is what it would be if nothing happened."""
    prompt, params = asked
    assert stream.tokens == tokens_of(prompt, params)
    stopped = len(stream.tokens) < (params.max_tokens or 0)
    assert (stream.reason, stream.stop_reason) == (("stop", stream.tokens[-1]) if stopped else ("length", None))
    shown = stream.tokens[:-1] if stopped else stream.tokens
    assert stream.text == bytes(token - FIRST_BYTE_ID for token in shown).decode()


async def answer_all(engine: AsyncLLM, asked: Sequence[Asked], driver: FaultDriver | None = None) -> list[Stream]:
    """Ask all at once, and check the answers."""
    streams = await asyncio.gather(*(follow(engine, prompt, params, driver) for prompt, params in asked))
    for question, stream in zip(asked, streams, strict=True):
        check_answer(question, stream)
    return streams


async def begun(engine: AsyncLLM, asked: Sequence[Asked]) -> list[RequestOutputCollector]:
    """Requests whose first tokens have come."""
    collectors = [await engine.add_request(f"r{number}", *question) for number, question in enumerate(asked)]
    for collector in collectors:
        await collector.get()
    return collectors


async def tokens_left(collector: RequestOutputCollector) -> list[int]:
    """All tokens of a request, once it has finished; its outputs are cumulative."""
    while not (output := await collector.get()).finished:
        pass
    return list(output.outputs[0].token_ids)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what no event announces."""
    while not condition():
        await asyncio.sleep(0)
