"""`ringpost bench perplexity`: how well a model foretells a text, with its weights as they are and quantised."""

import math
from collections.abc import Callable, Iterator

import msgspec

from ...ipc.messages.sampling import RequestOutputKind, SamplingParams
from ..frontend.async_llm import AsyncLLM
from .mailbox import machine_facts

_AT_ONCE = 8  # windows in the engine


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    model: str
    dtype: str
    quantizations: list[str]
    ignore: list[str]  # modules that stay dense, as the option `quantization_ignore` has them
    window: int  # tokens that are seen together


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Of one quantisation."""

    quantization: str
    perplexity: float
    nats: float  # a token, on average: the logarithm of the perplexity
    tokens: int  # that were foretold


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found."""

    benchmark: str
    machine: dict[str, str | float]
    settings: Settings
    results: list[Result]


async def run_perplexity_benchmark(settings: Settings, text: str, done: Callable[[], None]) -> Report:
    """Measure. Calls `done` after each quantisation. Raises ValueError for a model, text or value that cannot be used."""
    results = []
    for quantization in settings.quantizations:
        async with AsyncLLM.from_engine_args(
            model=settings.model,
            dtype=settings.dtype,
            quantization=quantization,
            quantization_ignore=settings.ignore if quantization != "none" else [],
            enable_prefix_caching=False,
            max_num_seqs=_AT_ONCE,
        ) as engine:
            results.append(await _measure(engine, settings, quantization, text))
        done()
    return Report(benchmark="perplexity", machine=machine_facts(), settings=settings, results=results)


async def _measure(engine: AsyncLLM, settings: Settings, quantization: str, text: str) -> Result:
    tokens = [token for part in _parts(text) for token in await engine.token_ids(part, add_special_tokens=False)]
    windows = [tokens[at : at + settings.window] for at in range(0, len(tokens), settings.window)]
    windows = [window for window in windows if len(window) > 1]
    if not windows:
        raise ValueError(f"the text must have at least 2 tokens, it has {len(tokens)}")
    nats = [loss for window in windows for loss in await _losses(engine, window)]
    mean = math.fsum(nats) / len(nats)
    return Result(quantization=quantization, perplexity=math.exp(mean), nats=mean, tokens=len(nats))


async def _losses(engine: AsyncLLM, window: list[int]) -> list[float]:
    """Of each token behind the first: minus the logarithm of its probability after those before it."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY)
    async for output in engine.generate(window, params):
        found = output.prompt_logprobs or []
        return [-position[token].logprob for token, position in zip(window, found, strict=True) if position is not None]
    return []


def _parts(text: str) -> Iterator[str]:
    """Paragraphs, each with what ends it: no tokenizer has to take the whole."""
    *paragraphs, last = text.split("\n\n")
    for paragraph in paragraphs:
        yield paragraph + "\n\n"
    if last:
        yield last
