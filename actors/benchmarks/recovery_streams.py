"""Streams of benchmarks: what is asked, what came, and how two runs of one compare."""

import random
from dataclasses import dataclass, field
from itertools import pairwise

from ...ipc.messages.sampling import RequestOutputKind, SamplingParams

_PROMPT_LENGTHS = (4, 16, 33, 64, 100)

Question = tuple[list[int], SamplingParams]  # the first are token ids


def answers(tokens: int) -> SamplingParams:
    """Greedy ones of so many tokens, as they come."""
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA)


def questions(count: int, tokens: int, vocab_size: int) -> list[Question]:
    """Greedy and seeded ones by turns, with prompts of different lengths, each answered by so many tokens."""
    asked = []
    for number in range(count):
        prompt = random.Random(number).choices(range(vocab_size), k=_PROMPT_LENGTHS[number % len(_PROMPT_LENGTHS)])
        params = SamplingParams(
            temperature=0.8 if number % 2 else 0.0,
            seed=number,
            max_tokens=tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        asked.append((prompt, params))
    return asked


@dataclass
class Stream:
    """What one request got; times are in CLOCK_MONOTONIC."""

    began: float = 0.0
    times: list[float] = field(default_factory=list)  # when each output came
    tokens: list[int] = field(default_factory=list)
    error: str = ""
    ended: bool = False

    @property
    def first_token_seconds(self) -> float | None:
        """Seconds until the first token; None without one."""
        return self.times[0] - self.began if self.times else None

    @property
    def longest_pause(self) -> float:
        """Seconds between two outputs."""
        return max((after - before for before, after in pairwise(self.times)), default=0.0)

    def lost(self, wanted: "Stream") -> int:
        """How many tokens of `wanted` it has not got."""
        return max(0, len(wanted.tokens) - len(self.tokens))

    def changed(self, wanted: "Stream") -> int:
        """How many tokens are others than in `wanted`, or too many."""
        others = sum(token != right for token, right in zip(self.tokens, wanted.tokens, strict=False))
        return others + max(0, len(self.tokens) - len(wanted.tokens))


def tokens_per_second(streams: list[Stream]) -> float:
    """Of all together, none of which failed, from the first question to the last token."""
    seconds = max(stream.times[-1] for stream in streams) - min(stream.began for stream in streams)
    return sum(len(stream.tokens) for stream in streams) / seconds
