"""SamplingParams: what a caller may ask about the choice of tokens and the end of an answer."""

from collections.abc import Mapping, Sequence
from copy import copy
from enum import StrEnum
from typing import Any

import msgspec

from . import sampling_checks as checks
from .errors import ParameterError

MAX_SEED = 2**63 - 1
MAX_N = 16384  # answers to one prompt
GREEDY_BELOW = 1e-5  # a lower temperature is greedy: the argmax without noise
LOWEST_TEMPERATURE = 1e-2  # a temperature between the two is raised to this, so that logits / temperature stays finite
MAX_PATTERN = 512  # tokens of a pattern that repetition detection looks for
_MAX_COUNT = 2**31 - 1


class RequestOutputKind(StrEnum):
    """What each output of a request carries."""

    CUMULATIVE = "cumulative"  # everything so far
    DELTA = "delta"  # what is new
    FINAL_ONLY = "final_only"  # one output, at the end


class RepetitionDetectionParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """End an answer, with finish reason "repetition", once its last tokens are one pattern, `min_count` times in a row."""

    max_pattern_size: int  # tokens of a pattern, at most
    min_pattern_size: int = 1  # and at least
    min_count: int = 2

    def __post_init__(self) -> None:
        field = "repetition_detection"
        most = checks.integer(
            f"{field}.max_pattern_size", self.max_pattern_size, 1, MAX_PATTERN, f"an integer from 1 to {MAX_PATTERN}"
        )
        wanted = f"an integer from 0 to max_pattern_size={most}"
        least = checks.integer(f"{field}.min_pattern_size", self.min_pattern_size, 0, most, wanted)
        count = checks.integer(f"{field}.min_count", self.min_count, 2, _MAX_COUNT, "an integer of at least 2")
        for name, value in (("max_pattern_size", most), ("min_pattern_size", max(least, 1)), ("min_count", count)):
            msgspec.structs.force_setattr(self, name, value)


def _output_kind(field: str, value: Any) -> RequestOutputKind:
    try:
        return RequestOutputKind(value)
    except ValueError:
        raise checks.wrong(field, value, "'cumulative', 'delta' or 'final_only'") from None


def _repetition_detection(field: str, value: Any) -> RepetitionDetectionParams:
    if isinstance(value, RepetitionDetectionParams):
        return value
    if not isinstance(value, Mapping):
        raise checks.wrong(field, value, "a RepetitionDetectionParams or a dict of its fields")
    try:
        return RepetitionDetectionParams(**value)
    except TypeError as error:
        raise ParameterError(f"{field} must hold the fields of RepetitionDetectionParams: {error}", field) from None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How to choose tokens and when to stop. Names, defaults and ranges are vLLM's.

    Raises ParameterError (a ValueError), naming the field and the value, for a wrong type or range. Instances are immutable and
    keep no reference to a list or dict passed in.

    The order of what shapes a choice: allowed_token_ids, bad_words, min_tokens, logit_bias and custom processors, the three
    penalties, temperature, min_p, top_k, top_p. What takes a token out wins over any bias.
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
    min_tokens: int = 0  # no end of sequence, stop token or stop string before this many tokens
    n: int = 1  # answers to the prompt; answer i has the seed `seed + i`. More than one needs a temperature above 0
    presence_penalty: float = 0.0  # taken from the logits of tokens that the answer holds, -2 to 2
    frequency_penalty: float = 0.0  # the same, as often as it holds them
    repetition_penalty: float = (
        1.0  # 1e-3 to 1e3; divides the logits of tokens in prompt or answer, multiplies those below zero
    )
    stop: str | Sequence[str] | None = ()  # end where the text holds any of these
    include_stop_str_in_output: bool = False  # show the stop string, or the text of the stop token, at the end
    bad_words: Sequence[str] = ()  # texts that the answer must not hold, with or without a space before
    bad_words_token_ids: Sequence[Sequence[int]] = ()  # the same as token ids; the engine adds those of bad_words
    allowed_token_ids: Sequence[int] | None = None  # no other token may be chosen
    logprobs: int | None = None  # report the chosen token and so many of the likeliest; -1: the whole vocabulary
    prompt_logprobs: int | None = None  # the same for the prompt's tokens
    flat_logprobs: bool = False  # in columns (FlatLogprobs) instead of a dict for each token
    detokenize: bool = True  # False: no text, only token ids
    spaces_between_special_tokens: bool = True  # where the model's decoder puts any
    stream_interval: int | None = None  # tokens between two outputs, but for the first and the last; None: the engine's
    repetition_detection: RepetitionDetectionParams | None = None  # or a dict of its fields: end an answer that goes in circles
    skip_reading_prefix_cache: bool | None = None  # compute the whole prompt; None: only for prompt_logprobs
    extra_args: Mapping[str, Any] | None = None  # JSON values for custom logits processors

    def __post_init__(self) -> None:
        """Check every field, and keep plain values of our own instead of a caller's list or number type."""
        checked = self._checked_choice() | self._checked_end() | self._checked_output()
        for field, value in checked.items():
            msgspec.structs.force_setattr(self, field, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise checks.wrong("min_tokens", self.min_tokens, f"at most max_tokens={self.max_tokens}")
        if self.stop and not self.detokenize:
            raise checks.wrong("stop", self.stop, "empty with detokenize=False: there is no text to look at")
        if self.prompt_logprobs is not None and self.skip_reading_prefix_cache is False:
            raise checks.wrong(
                "skip_reading_prefix_cache", False, "None or True with prompt_logprobs: the prompt is computed whole"
            )
        if self.n > 1 and self.temperature < GREEDY_BELOW:
            raise checks.wrong("n", self.n, "1 with temperature=0: greedy answers are all the same")

    def _checked_choice(self) -> dict[str, object]:
        checked: dict[str, object] = {
            "temperature": checks.number("temperature", self.temperature, 0, 2, "a number from 0 to 2"),
            "top_p": checks.number("top_p", self.top_p, 0, 1, "a number above 0, at most 1", low_open=True),
            "top_k": checks.integer("top_k", self.top_k, -1, _MAX_COUNT, "an integer of at least -1 (0 or -1: no limit)"),
            "min_p": checks.number("min_p", self.min_p, 0, 1, "a number from 0 to 1"),
            "presence_penalty": checks.number("presence_penalty", self.presence_penalty, -2, 2, "a number from -2 to 2"),
            "frequency_penalty": checks.number("frequency_penalty", self.frequency_penalty, -2, 2, "a number from -2 to 2"),
            "repetition_penalty": checks.number(
                "repetition_penalty", self.repetition_penalty, 1e-3, 1e3, "a number from 0.001 to 1000"
            ),
            "bad_words": checks.strings("bad_words", self.bad_words, checks.MAX_BAD_WORDS, checks.MAX_BAD_WORD_CHARACTERS),
            "bad_words_token_ids": checks.token_sequences("bad_words_token_ids", self.bad_words_token_ids),
        }
        if self.seed is not None:
            wanted = f"None or an integer from -1 (a random one) to {MAX_SEED}"
            checked["seed"] = checks.integer("seed", self.seed, -1, MAX_SEED, wanted)
        if self.logit_bias is not None:
            checked["logit_bias"] = checks.logit_bias("logit_bias", self.logit_bias)
        if self.allowed_token_ids is not None:
            allowed = checks.token_ids("allowed_token_ids", self.allowed_token_ids, checks.MAX_TOKEN_ID)
            if not allowed:
                raise checks.wrong("allowed_token_ids", [], "None or a list of at least one token id")
            checked["allowed_token_ids"] = allowed
        if self.extra_args is not None:
            checked["extra_args"] = checks.extra_args("extra_args", self.extra_args)
        return checked

    def _checked_end(self) -> dict[str, object]:
        checked: dict[str, object] = {
            "n": checks.integer("n", self.n, 1, MAX_N, f"an integer from 1 to {MAX_N}"),
            "stop": checks.strings("stop", self.stop, checks.MAX_STOP_STRINGS, checks.MAX_STOP_CHARACTERS),
            "stop_token_ids": checks.token_ids("stop_token_ids", self.stop_token_ids or ()),
            "ignore_eos": checks.flag("ignore_eos", self.ignore_eos),
            "min_tokens": checks.integer("min_tokens", self.min_tokens, 0, _MAX_COUNT, "an integer of at least 0"),
        }
        if self.max_tokens is not None:
            wanted = "None or an integer of at least 1"
            checked["max_tokens"] = checks.integer("max_tokens", self.max_tokens, 1, _MAX_COUNT, wanted)
        if self.repetition_detection is not None:
            checked["repetition_detection"] = _repetition_detection("repetition_detection", self.repetition_detection)
        return checked

    def _checked_output(self) -> dict[str, object]:
        checked: dict[str, object] = {
            name: checks.flag(name, getattr(self, name))
            for name in (
                "skip_special_tokens",
                "include_stop_str_in_output",
                "flat_logprobs",
                "detokenize",
                "spaces_between_special_tokens",
            )
        }
        checked["output_kind"] = _output_kind("output_kind", self.output_kind)
        for name in ("logprobs", "prompt_logprobs"):
            checked[name] = checks.count_of_logprobs(name, getattr(self, name))
        if self.stream_interval is not None:
            wanted = "None or an integer of at least 1"
            checked["stream_interval"] = checks.integer("stream_interval", self.stream_interval, 1, _MAX_COUNT, wanted)
        if self.skip_reading_prefix_cache is not None:
            checked["skip_reading_prefix_cache"] = checks.flag("skip_reading_prefix_cache", self.skip_reading_prefix_cache)
        return checked

    def __hash__(self) -> int:
        """Equal for equal values. The hash that a frozen struct has of its own fails for a dict in a field."""
        return hash(tuple([value for value in msgspec.structs.astuple(self) if not isinstance(value, dict)]))

    def clone(self, **changes: Any) -> "SamplingParams":
        """A copy with these fields changed, checked like any other."""
        return msgspec.structs.replace(self, **changes)

    def derive(self, **changes: Any) -> "SamplingParams":
        """A copy with these fields changed to values that are known to be right: nothing is checked again."""
        derived = copy(self)
        for field, value in changes.items():
            msgspec.structs.force_setattr(derived, field, value)
        return derived

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, without noise."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def penalized(self) -> bool:
        """Whether what has been said changes what is likely."""
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1.0

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether what others have computed of the same prompt may be used: without it all its logits are computed."""
        return self.prompt_logprobs is None and not self.skip_reading_prefix_cache
