"""Checks of SamplingParams' fields: each returns a plain value of its own, or raises ParameterError with field and value."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from .errors import ParameterError

MAX_TOKEN_ID = 2**31 - 1
MAX_LOGIT_BIAS = 100.0  # a bias beyond this, of either sign, is cut to it
MAX_BIASED_TOKENS = 1024
MAX_STOP_TOKENS = 1024
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024  # of one of them
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARACTERS = 256
MAX_BAD_SEQUENCES = 2 * MAX_BAD_WORDS  # a word has two forms: with and without a space before
MAX_BAD_SEQUENCE = 256  # token ids of one of them
MAX_EXTRA_BYTES = 1 << 16  # of extra_args, encoded


def wrong(field: str, value: object, wanted: str) -> ParameterError:
    """The error of a value that is not as wanted."""
    return ParameterError(f"{field} must be {wanted}, got {value!r:.100}", field)


def number(field: str, value: Any, low: float, high: float, wanted: str, *, low_open: bool = False) -> float:
    """A finite number between two bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(field, value, wanted)
    # The range first: an integer beyond every float cannot be asked whether it is finite.
    if value < low or value > high or (low_open and value == low) or not math.isfinite(value):
        raise wrong(field, value, wanted)
    return float(value)


def integer(field: str, value: Any, low: int, high: int, wanted: str) -> int:
    """An integer between two bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise wrong(field, value, wanted)
    return int(value)


def flag(field: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise wrong(field, value, "True or False")
    return value


def count_of_logprobs(field: str, value: Any) -> int | None:
    """How many of the likeliest tokens: None for none at all, -1 for the whole vocabulary. True is 1."""
    if value is None or value is False:
        return None
    wanted = "None or an integer of at least -1 (-1: the whole vocabulary)"
    return 1 if value is True else integer(field, value, -1, MAX_TOKEN_ID, wanted)


def token_ids(field: str, value: Any, most: int = MAX_STOP_TOKENS) -> tuple[int, ...]:
    """Token ids without repetitions, in the order given."""
    wanted = "a list of token ids, each an integer of at least 0"
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise wrong(field, value, wanted)
    tokens = dict.fromkeys([integer(field, token, 0, MAX_TOKEN_ID, wanted) for token in value])
    if len(tokens) > most:
        raise ParameterError(f"{field} must hold at most {most} token ids, got {len(tokens)}", field)
    return tuple(tokens)


def token_sequences(field: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Sequences of 1 to MAX_BAD_SEQUENCE token ids, at most MAX_BAD_SEQUENCES of them."""
    wanted = "a list of lists of token ids, none of them empty"
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise wrong(field, value, wanted)
    sequences = []
    for ids in value:
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise wrong(field, value, wanted)
        sequences.append(tuple([integer(field, token, 0, MAX_TOKEN_ID, wanted) for token in ids]))
        if not sequences[-1]:
            raise wrong(field, value, wanted)
        if len(sequences[-1]) > MAX_BAD_SEQUENCE:
            limit = f"lists of at most {MAX_BAD_SEQUENCE} token ids"
            raise ParameterError(f"{field} must hold {limit}, got one of {len(sequences[-1])}", field)
    if len(sequences) > MAX_BAD_SEQUENCES:
        limit = f"at most {MAX_BAD_SEQUENCES} lists"
        raise ParameterError(f"{field} must hold {limit}, got {len(sequences)}", field)
    return tuple(sequences)


def strings(field: str, value: Any, most: int, longest: int) -> tuple[str, ...]:
    """Strings, none of them empty; one alone stands for a list of one, and None for none."""
    wanted = "a string or a list of strings, none of them empty"
    items = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(items, Iterable):
        raise wrong(field, value, wanted)
    found = list(items)
    for item in found:
        if not isinstance(item, str) or not item:
            raise wrong(field, item, wanted)
        if len(item) > longest:
            raise wrong(field, f"{len(item)} characters", f"strings of at most {longest} characters")
        if any("\ud800" <= character <= "\udfff" for character in item):
            raise wrong(field, item, "strings without lone surrogates")
    if len(found) > most:
        raise ParameterError(f"{field} must hold at most {most} strings, got {len(found)}", field)
    return tuple([str(item) for item in found])


def logit_bias(field: str, value: Any) -> dict[int, float] | None:
    """A dict of our own by ids as integers; None for an empty one."""
    wanted = f"a dict from token ids to numbers, with at most {MAX_BIASED_TOKENS} ids"
    if not isinstance(value, Mapping):
        raise wrong(field, value, wanted)
    if len(value) > MAX_BIASED_TOKENS:
        raise wrong(field, len(value), wanted)
    biases: dict[int, float] = {}
    for key, bias in value.items():
        token = _biased_token(field, key)
        if token in biases:
            raise wrong(field, key, "a dict that names each token id once, as an integer or in digits")
        finite = math.isfinite(bias) if isinstance(bias, float) else isinstance(bias, int) and not isinstance(bias, bool)
        if not finite:
            raise wrong(field, bias, "a dict whose values are finite numbers")
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
        raise wrong(field, key, wanted)
    return int(token)


def extra_args(field: str, value: Any) -> dict[str, Any] | None:
    """A copy of a dict of JSON values; None for an empty one."""
    wanted = "a dict with texts as keys and JSON values, whose integers fit 64 bits"
    if not isinstance(value, Mapping):
        raise wrong(field, value, wanted)
    try:
        copied = _json_value(dict(value))
        size = len(msgspec.msgpack.encode(copied))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ParameterError(f"{field} must be {wanted}: {error}", field) from None
    if size > MAX_EXTRA_BYTES:
        raise wrong(field, f"{size} bytes", f"at most {MAX_EXTRA_BYTES} bytes, encoded")
    return copied or None


def _json_value(value: Any) -> Any:
    """A copy of a value that JSON can say. Raises TypeError or ValueError for any other."""
    match value:
        case None | bool() | str() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case list() | tuple():
            return [_json_value(item) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _json_value(item) for key, item in value.items()}
        case _:
            raise ValueError(f"got {value!r:.100}")
