"""`ringpost bench frontend`: what a token costs from the core's message to its consumer, without a model or processes."""

import asyncio
import gc
from collections.abc import Callable
from itertools import cycle, islice
from statistics import median
from time import process_time_ns

import msgspec

from ...ipc.codec import Codec
from ...ipc.messages.config import EngineConfig, ModelConfig, RuntimeConfig
from ...ipc.messages.outputs import FinishReason, OutputMessage, StepOutputs, TokenDelta
from ...ipc.messages.sampling import RequestOutputKind, SamplingParams
from ..boot import freeze_memory
from ..config import resolve_config
from ..frontend.collector import RequestOutputCollector
from ..frontend.live_request import LiveRequest
from ..frontend.output_processor import OutputProcessor
from ..frontend.renderer import Renderer
from ..loops import loop_factory
from .mailbox import machine_facts
from .thaw import thawed_afterwards

_TEXT = "The river bends twice before the bridge, and the old mill beside it has not turned since the war. "
_PROMPT_TOKENS = 128


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and how often."""

    model: str  # whose tokenizer
    streams: int  # consumers at once
    tokens: list[int]  # of each answer
    stop: list[str]  # stop strings that do not occur
    repeat: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds of CPU a token: of the median repeat, and of each."""

    output_kind: str
    tokens: int
    token_us: float
    repeats: list[float]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run has found."""

    benchmark: str
    machine: dict[str, str | float]
    settings: Settings
    results: list[Result]


def cases(settings: Settings) -> list[tuple[RequestOutputKind, int]]:
    """What is measured, in this order."""
    return [(kind, tokens) for tokens in settings.tokens for kind in RequestOutputKind]


async def _consume(collector: RequestOutputCollector) -> int:
    """Take all outputs and look at them, as a program would; returns the characters of the last."""
    while True:
        output = await collector.get()
        (completion,) = output.outputs
        characters, _ = len(completion.text), completion.token_ids
        if output.finished:
            return characters


async def _answer(renderer: Renderer, settings: Settings, kind: RequestOutputKind, tokens: list[int]) -> int:
    """Nanoseconds of CPU for all streams, from the bytes of the core's messages on."""
    params = SamplingParams(max_tokens=None, output_kind=kind, stop=settings.stop)
    words, codec, outputs = renderer.words(params), Codec[OutputMessage](OutputMessage), OutputProcessor()
    spent = -process_time_ns()
    async with asyncio.TaskGroup() as tasks:
        for number in range(settings.streams):
            live = LiveRequest(f"{number}", [number], params, words, [1] * _PROMPT_TOKENS)
            collector = RequestOutputCollector(live, on_abandon=lambda: None)
            outputs.add(live, collector)
            outputs.tokenized(live, live.prompt_token_ids)
            tasks.create_task(_consume(collector))
        for position, token in enumerate(tokens):
            spent += process_time_ns()
            reason: FinishReason | None = "length" if position == len(tokens) - 1 else None
            deltas = [TokenDelta(number, position, [token], reason) for number in range(settings.streams)]
            message = memoryview(codec.encode(StepOutputs(position, deltas)))
            spent -= process_time_ns()
            step = codec.decode_parts([message])
            assert isinstance(step, StepOutputs)
            outputs.process(step.deltas)
            await asyncio.sleep(0)
    return spent + process_time_ns()


def run_frontend_benchmark(settings: Settings, done: Callable[[], None] = lambda: None) -> Report:
    """Measure all of it; `done` is called after each case. Fetches the model if need be."""
    config = resolve_config(EngineConfig(model=ModelConfig(model=settings.model)))
    renderer = Renderer(config.checkpoint)
    results = []
    freeze_memory(RuntimeConfig())  # as in a program that serves
    with thawed_afterwards(), asyncio.Runner(loop_factory=loop_factory(RuntimeConfig())) as runner:
        text = runner.run(renderer.encode(_TEXT))
        for kind, count in cases(settings):
            tokens, repeats = list(islice(cycle(text), count)), []
            for _ in range(settings.repeat):
                gc.collect()
                nanoseconds = runner.run(_answer(renderer, settings, kind, tokens))
                repeats.append(nanoseconds / 1e3 / count / settings.streams)
            results.append(Result(output_kind=kind.value, tokens=count, token_us=median(repeats), repeats=repeats))
            done()
    return Report(benchmark="frontend", machine=machine_facts(), settings=settings, results=results)
