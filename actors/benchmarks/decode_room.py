"""Room for `ringpost bench growth`: what requests that decode together need of an engine."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from ...ipc.messages.config import EngineConfig
from .engine_report import GrowthSettings

BATCH_CONTEXT = 128  # tokens of each prompt where the number of requests grows


@dataclass(frozen=True)
class Room:
    """An engine, as far as a batch can be too large for it."""

    config: EngineConfig  # resolved
    num_blocks: int  # of the KV cache

    def check(self, settings: GrowthSettings) -> None:
        """Raise ValueError for the first batch size or context that does not fit; it says which would."""
        steps = settings.output_len
        for count in settings.batch_sizes:
            most = self.config.scheduler.max_num_seqs
            _check("batch_sizes", count, most, lambda fewer: self.obstacle(fewer, BATCH_CONTEXT, steps), steps)
        for context in settings.contexts:
            most = self.config.checkpoint.max_model_len
            _check("contexts", context, most, lambda shorter: self.obstacle(1, shorter, steps), steps)

    def obstacle(self, count: int, context: int, steps: int) -> str | None:
        """What is too small for so many requests together, of which each is to see so many steps; None if nothing is."""
        scheduler, size, longest = self.config.scheduler, self.config.cache.block_size, self.config.checkpoint.max_model_len
        rows = {"max_num_seqs": scheduler.max_num_seqs, "max_num_batched_tokens": scheduler.max_num_batched_tokens}
        for name, most in rows.items():
            if count > most:
                return f"{name} {most}"
        tokens = context + self.max_tokens(count, context, steps)
        if tokens > longest:
            return f"max_model_len {longest}"
        # The last one is let in only while a block is left for each of the others.
        if count * _divided_up(tokens, size) + count - 1 > self.num_blocks:
            return f"a KV cache of {self.num_blocks} blocks of {size} tokens"
        return None

    def max_tokens(self, count: int, context: int, steps: int) -> int:
        """Tokens after which requests may end: by then each has seen so many steps after the last one's first token.

        The first request gets a token in each step that computes the others' prompts. Such a step is full, but for a token of
        each request, and for the last steps where `long_prefill_token_threshold` keeps prompts from filling them.
        """
        scheduler = self.config.scheduler
        beside = _divided_up((count - 1) * context, scheduler.max_num_batched_tokens - count + 1)
        if count > 1 and scheduler.long_prefill_token_threshold:
            beside += _divided_up(context, scheduler.long_prefill_token_threshold)
        # Besides: its own first token, and two steps at whose beginning or end a request may not be seen to be with the others.
        return 1 + beside + steps + 2


def _check(name: str, value: int, most: int, obstacle: Callable[[int], str | None], steps: int) -> None:
    """Raise ValueError if the value has an obstacle. What has one has it with larger values too, and with any above `most`."""
    if obstacle(value) is None:
        return
    fitting = bisect_left(range(1, min(value, most) + 1), True, key=lambda tried: obstacle(tried) is not None)
    limit = f"at most {fitting}" if fitting else "left out: none fits"
    raise ValueError(f"{name} must be {limit} with output_len {steps} and {obstacle(fitting + 1)}, got {value}")


def _divided_up(number: int, by: int) -> int:
    return -(-number // by)
