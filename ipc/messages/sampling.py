"""SamplingParams: what a caller may ask about the choice of tokens and the end of an answer."""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from .errors import ParameterError

MAX_SEED = 2**63 - 1
GREEDY_BELOW = 1e-5  # a lower temperature is greedy: the argmax without noise
LOWEST_TEMPERATURE = 1e-2  # a temperature between the two is raised to this, so that logits / temperature stays finite
MAX_TOKEN_ID = 2**31 - 1
MAX_LOGIT_BIAS = 100.0  # a bias beyond this, of either sign, is cut to it
MAX_BIASED_TOKENS = 1024
MAX_STOP_TOKENS = 1024


class RequestOutputKind(StrEnum):
    """What each output of a request carries."""

    CUMULATIVE = "cumulative"  # everything so far
    DELTA = "delta"  # what is new
    FINAL_ONLY = "final_only"  # one output, at the end


def _fail(field: str, value: object, wanted: str) -> ParameterError:
    return ParameterError(f"{field} must be {wanted}, got {value!r:.100}", field)


def _number(field: str, value: Any, low: float, high: float, wanted: str, *, low_open: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _fail(field, value, wanted)
    # The range first: an integer beyond every float cannot be asked whether it is finite.
    if value < low or value > high or (low_open and value == low) or not math.isfinite(value):
        raise _fail(field, value, wanted)
    return float(value)


def _integer(field: str, value: Any, low: int, high: int, wanted: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _fail(field, value, wanted)
    return int(value)


def _flag(field: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _fail(field, value, "True or False")
    return value


def _token_ids(field: str, value: Any) -> tuple[int, ...]:
    wanted = "a list of token ids, each an integer of at least 0"
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise _fail(field, value, wanted)
    tokens = dict.fromkeys([_integer(field, token, 0, MAX_TOKEN_ID, wanted) for token in value])
    if len(tokens) > MAX_STOP_TOKENS:
        raise ParameterError(f"{field} must hold at most {MAX_STOP_TOKENS} token ids, got {len(tokens)}", field)
    return tuple(tokens)


def _logit_bias(field: str, value: Any) -> dict[int, float] | None:
    """A dict of our own by ids as integers; None for an empty one."""
    wanted = f"a dict from token ids to numbers, with at most {MAX_BIASED_TOKENS} ids"
    if not isinstance(value, Mapping):
        raise _fail(field, value, wanted)
    if len(value) > MAX_BIASED_TOKENS:
        raise _fail(field, len(value), wanted)
    biases: dict[int, float] = {}
    for key, bias in value.items():
        token = _biased_token(field, key)
        if token in biases:
            raise _fail(field, key, "a dict that names each token id once, as an integer or in digits")
        finite = math.isfinite(bias) if isinstance(bias, float) else isinstance(bias, int) and not isinstance(bias, bool)
        if not finite:
            raise _fail(field, bias, "a dict whose values are finite numbers")
        biases[token] = float(min(max(bias, -MAX_LOGIT_BIAS), MAX_LOGIT_BIAS))
    return biases or None


def _biased_token(field: str, key: Any) -> int:
    """The id in a key, which is text in JSON."""
    wanted = "a dict whose keys are token ids: integers of at least 0, or such in digits"
    token = key
    if isinstance(key, str):
        # The length first: digits without end are slow to convert, or refused with an error that names no field.
        token = int(key) if len(key) <= len(str(MAX_TOKEN_ID)) and key.isascii() and key.isdecimal() else None
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= MAX_TOKEN_ID:
        raise _fail(field, key, wanted)
    return int(token)


def _output_kind(field: str, value: Any) -> RequestOutputKind:
    try:
        return RequestOutputKind(value)
    except ValueError:
        raise _fail(field, value, "'cumulative', 'delta' or 'final_only'") from None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How to choose tokens and when to stop. Names, defaults and ranges are vLLM's.

    Raises ParameterError (a ValueError), naming the field and the value, for a wrong type or range. Instances are immutable and
    keep no reference to a list or dict passed in.
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
    logit_bias: Mapping[int, float] | None = None  # added to the logits of these tokens; -100 to 100, what is beyond is cut
    min_tokens: int = 0  # no end of sequence and no stop token before this many tokens

    def __post_init__(self) -> None:
        """Check every field, and keep plain values of our own instead of a caller's list or number type."""
        checked: dict[str, object] = {
            "temperature": _number("temperature", self.temperature, 0, 2, "a number from 0 to 2"),
            "top_p": _number("top_p", self.top_p, 0, 1, "a number above 0, at most 1", low_open=True),
            "top_k": _integer("top_k", self.top_k, -1, 2**31 - 1, "an integer of at least -1 (0 or -1: no limit)"),
            "min_p": _number("min_p", self.min_p, 0, 1, "a number from 0 to 1"),
            "stop_token_ids": _token_ids("stop_token_ids", self.stop_token_ids),
            "ignore_eos": _flag("ignore_eos", self.ignore_eos),
            "skip_special_tokens": _flag("skip_special_tokens", self.skip_special_tokens),
            "output_kind": _output_kind("output_kind", self.output_kind),
            "min_tokens": _integer("min_tokens", self.min_tokens, 0, 2**31 - 1, "an integer of at least 0"),
        }
        if self.seed is not None:
            wanted = f"None or an integer from -1 (a random one) to {MAX_SEED}"
            checked["seed"] = _integer("seed", self.seed, -1, MAX_SEED, wanted)
        if self.max_tokens is not None:
            checked["max_tokens"] = _integer("max_tokens", self.max_tokens, 1, 2**31 - 1, "None or an integer of at least 1")
            if self.min_tokens > self.max_tokens:
                raise _fail("min_tokens", self.min_tokens, f"at most max_tokens={self.max_tokens}")
        if self.logit_bias is not None:
            checked["logit_bias"] = _logit_bias("logit_bias", self.logit_bias)
        for field, value in checked.items():
            msgspec.structs.force_setattr(self, field, value)

    def __hash__(self) -> int:
        """Equal for equal values. The hash that a frozen struct has of its own fails for a dict in a field."""
        values = msgspec.structs.astuple(self)
        return hash(tuple([frozenset(value.items()) if isinstance(value, dict) else value for value in values]))

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, without noise."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1
