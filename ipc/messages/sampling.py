"""SamplingParams: what a caller may ask about the choice of tokens and the end of an answer."""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

MAX_SEED = 2**63 - 1
GREEDY_BELOW = 1e-5  # a lower temperature is greedy: the argmax without noise
LOWEST_TEMPERATURE = 1e-2  # a temperature between the two is raised to this, so that logits / temperature stays finite


class RequestOutputKind(StrEnum):
    """What each output of a request carries."""

    CUMULATIVE = "cumulative"  # everything so far
    DELTA = "delta"  # what is new
    FINAL_ONLY = "final_only"  # one output, at the end


def _fail(field: str, value: object, wanted: str) -> ValueError:
    return ValueError(f"{field} must be {wanted}, got {value!r}")


def _number(field: str, value: Any, low: float, high: float, wanted: str, *, low_open: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _fail(field, value, wanted)
    # The range first: an integer beyond every float cannot be asked whether it is finite.
    if value < low or value > high or (low_open and value == low) or not math.isfinite(value):
        raise _fail(field, value, wanted)


def _integer(field: str, value: Any, low: int, high: int, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _fail(field, value, wanted)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How to choose tokens and when to stop. Names, defaults and ranges are vLLM's.

    Raises ValueError, naming the field and the value, for a wrong type or range. Instances are immutable and keep no
    reference to a list passed in.
    """

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # keep the smallest set of tokens with at least this probability, in (0, 1]
    top_k: int = 0  # keep the k likeliest tokens; 0 or -1: all
    min_p: float = 0.0  # keep tokens at least this likely relative to the likeliest, in [0, 1]
    seed: int | None = None  # None (or -1): a fresh random one for each request
    max_tokens: int | None = 16  # None: up to the model's context
    stop_token_ids: Sequence[int] = ()  # end after any of these; its text is not shown
    ignore_eos: bool = False  # go on after the model's end-of-sequence tokens
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE  # or its value as a string
    skip_special_tokens: bool = True  # leave special tokens out of the text

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0, 2, "a number from 0 to 2")
        _number("top_p", self.top_p, 0, 1, "a number above 0, at most 1", low_open=True)
        _integer("top_k", self.top_k, -1, 2**31 - 1, "an integer of at least -1 (0 or -1: no limit)")
        _number("min_p", self.min_p, 0, 1, "a number from 0 to 1")
        if self.seed is not None:
            _integer("seed", self.seed, -1, MAX_SEED, f"None or an integer from -1 (a random one) to {MAX_SEED}")
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1, "None or an integer of at least 1")
        for field in ("ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, field), bool):
                raise _fail(field, getattr(self, field), "True or False")
        try:
            msgspec.structs.force_setattr(self, "output_kind", RequestOutputKind(self.output_kind))
        except ValueError:
            raise _fail("output_kind", self.output_kind, "'cumulative', 'delta' or 'final_only'") from None
        self._freeze_ids("stop_token_ids")

    def _freeze_ids(self, field: str) -> None:
        """Replace a list the caller owns by a tuple of our own."""
        value = getattr(self, field)
        if isinstance(value, str | bytes) or not isinstance(value, Iterable):
            raise _fail(field, value, "a list of token ids")
        ids = tuple(value)
        for token in ids:
            _integer(field, token, 0, 2**31 - 1, "a list of token ids, each an integer of at least 0")
        msgspec.structs.force_setattr(self, field, ids)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, without noise."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1
