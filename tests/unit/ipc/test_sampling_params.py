"""SamplingParams: ranges, messages, and values of its own."""

import math
import re
from typing import Any

import msgspec
import pytest

from ringpost.ipc.messages.errors import ParameterError
from ringpost.ipc.messages.sampling import MAX_N, MAX_SEED, RepetitionDetectionParams, RequestOutputKind, SamplingParams
from ringpost.ipc.messages.sampling_checks import (
    MAX_BAD_SEQUENCE,
    MAX_BAD_SEQUENCES,
    MAX_BIASED_TOKENS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_TOKENS,
)

VALID: dict[str, list[Any]] = {
    "temperature": [0, 0.0, -0.0, 1e-9, 1, 2, 2.0],
    "top_p": [1e-9, 0.5, 1, 1.0],
    "top_k": [-1, 0, 1, 2**31 - 1],
    "min_p": [0, 0.0, 0.5, 1, 1.0],
    "seed": [None, -1, 0, MAX_SEED],
    "max_tokens": [None, 1, 2**31 - 1],
    "stop_token_ids": [(), (0,), (2**31 - 1, 5)],
    "ignore_eos": [True, False],
    "output_kind": list(RequestOutputKind),
    "skip_special_tokens": [True, False],
    "logit_bias": [None, {0: -100}, {2**31 - 1: 100.0, 5: 0.25}, dict.fromkeys(range(MAX_BIASED_TOKENS), 1)],
    "min_tokens": [0, 1, 16],
    "n": [1, 2, MAX_N],
    "presence_penalty": [-2, -0.5, 0, 2.0],
    "frequency_penalty": [-2, -0.5, 0, 2.0],
    "repetition_penalty": [1e-3, 1, 1.5, 1e3],
    "stop": [(), ("a",), ("\n", "a" * MAX_STOP_CHARACTERS), tuple("abc" * 21)],
    "include_stop_str_in_output": [True, False],
    "bad_words": [(), ("a",), ("a", "b c")],
    "bad_words_token_ids": [(), ((1,),), ((1, 2), (2**31 - 1,)), ((5,) * MAX_BAD_SEQUENCE,) * MAX_BAD_SEQUENCES],
    "allowed_token_ids": [None, (0,), (2**31 - 1, 5)],
    "logprobs": [None, -1, 0, 1, 2**31 - 1],
    "prompt_logprobs": [None, -1, 0, 1, 2**31 - 1],
    "flat_logprobs": [True, False],
    "detokenize": [True, False],
    "spaces_between_special_tokens": [True, False],
    "stream_interval": [None, 1, 100],
    "repetition_detection": [None, RepetitionDetectionParams(max_pattern_size=4, min_pattern_size=2, min_count=3)],
    "skip_reading_prefix_cache": [None, True, False],
    "extra_args": [None, {"a": [1, {"b": None}], "c": 2**63}],
}
NO_NUMBERS: list[Any] = [True, False, "1", None, [1], math.nan, math.inf, -math.inf, 10**400, -(10**400), 1j]
NO_INTEGERS: list[Any] = [True, False, "1", [1], 1.0, 1.5, math.nan, 10**400, -(10**400)]
INVALID: dict[str, list[Any]] = {
    "temperature": [*NO_NUMBERS, -1e-9, 2.0001],
    "top_p": [*NO_NUMBERS, 0, 0.0, -0.1, 1.0001],
    "top_k": [*NO_INTEGERS, None, -2, 2**31],
    "min_p": [*NO_NUMBERS, -1e-9, 1.0001],
    "seed": [*NO_INTEGERS, -2, MAX_SEED + 1],
    "max_tokens": [*NO_INTEGERS, 0, -1, 2**31],
    "stop_token_ids": [5, "5", b"5", [True], [1.0], ["5"], [None], [-1], [2**31], [10**400]],
    "ignore_eos": [0, 1, None, "true"],
    "output_kind": ["", "DELTA", 0, None, True, ["delta"]],
    "skip_special_tokens": [0, 1, None, "no"],
    "logit_bias": [5, "5", [5], [(5, 1.0)], True],
    "min_tokens": [*NO_INTEGERS, None, -1, 2**31, 17],
    "n": [*NO_INTEGERS, None, 0, -1, MAX_N + 1],
    "presence_penalty": [*NO_NUMBERS, -2.1, 2.1],
    "frequency_penalty": [*NO_NUMBERS, -2.1, 2.1],
    "repetition_penalty": [*NO_NUMBERS, 0, -1.0, 0.000999, 1000.1],
    "stop": ["", [""], ["a", ""], 5, [5], [b"a"], ["a" * (MAX_STOP_CHARACTERS + 1)], ["a"] * 65, ["\ud83d"]],
    "include_stop_str_in_output": [0, 1, None, "no"],
    "bad_words": ["", [""], 5, [5], ["a"] * 257, ["\ud83d"]],
    "bad_words_token_ids": [5, [5], [[]], ["1"], [[True]], [[-1]], [[2**31]], [[5]] * (MAX_BAD_SEQUENCES + 1)],
    "allowed_token_ids": [5, "5", [], [True], [1.0], [-1], [2**31]],
    "logprobs": ["1", [1], 1.0, -2, 2**31],
    "prompt_logprobs": ["1", [1], 1.0, -2, 2**31],
    "flat_logprobs": [0, 1, None, "no"],
    "detokenize": [0, 1, None, "no"],
    "spaces_between_special_tokens": [0, 1, None, "no"],
    "stream_interval": [*NO_INTEGERS, 0, -1, 2**31],
    "repetition_detection": [5, True, [4], {}, {"size": 4}, {"max_pattern_size": 0}, {"max_pattern_size": 513}],
    "skip_reading_prefix_cache": [0, 1, "no"],
    "extra_args": [5, "a", [1], {1: 2}, *({"a": value} for value in (b"a", {1}, math.nan, object(), 2**64, "b" * 70000))],
}


def cases(table: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    assert list(table) == [field.name for field in msgspec.structs.fields(SamplingParams)]
    return [(field, value) for field, values in table.items() for value in values]


@pytest.mark.parametrize(("field", "value"), cases(VALID))
def test_values_at_the_edges_are_taken_and_cross_a_mailbox(field: str, value: Any) -> None:
    params = SamplingParams(**{field: value})
    assert getattr(params, field) == value
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


@pytest.mark.parametrize(("field", "value"), cases(INVALID))
def test_other_values_are_refused_naming_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.parameter is not None
    assert caught.value.parameter.split(".")[0] == field
    assert str(caught.value).startswith((f"{field} must ", f"{field}."))
    if not isinstance(value, list | dict) and len(str(value)) < 100:
        assert f"{value!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "culprit"),
    [
        ("stop_token_ids", [5, True], "True"),
        ("allowed_token_ids", [5, -1], "-1"),
        ("allowed_token_ids", [], "[]"),
        ("bad_words_token_ids", [[5, 1.5]], "1.5"),
        ("bad_words_token_ids", [[5], [5] * (MAX_BAD_SEQUENCE + 1)], "257"),
        ("stop", ["a", ""], "''"),
        ("bad_words", ["a", 7], "7"),
        ("repetition_detection", {"max_pattern_size": 0}, "0"),
        ("repetition_detection", {"size": 4}, "'size'"),
    ],
)
def test_one_wrong_value_among_others_is_named(field: str, value: Any, culprit: str) -> None:
    with pytest.raises(ParameterError, match=rf"^{field}.*{re.escape(culprit)}"):
        SamplingParams(**{field: value})


def test_short_forms_mean_the_same_as_long_ones() -> None:
    params = SamplingParams(stop="ab", bad_words="c", logprobs=True, prompt_logprobs=False, extra_args={})
    assert (params.stop, params.bad_words, params.logprobs, params.prompt_logprobs) == (("ab",), ("c",), 1, None)
    assert params.extra_args is None
    assert SamplingParams(stop=None).stop == ()
    nothing: Any = None
    assert SamplingParams(stop_token_ids=nothing).stop_token_ids == ()


def test_a_clone_is_checked_like_any_other() -> None:
    params = SamplingParams(temperature=0.5, stop="a")
    assert params.clone(max_tokens=5) == SamplingParams(temperature=0.5, stop="a", max_tokens=5)
    with pytest.raises(ParameterError, match=r"^max_tokens must be"):
        params.clone(max_tokens=0)


def test_short_forms_of_repetition_detection() -> None:
    detection: Any = {"max_pattern_size": 4, "min_pattern_size": 0}
    expected = RepetitionDetectionParams(max_pattern_size=4, min_pattern_size=1, min_count=2)
    assert SamplingParams(repetition_detection=detection).repetition_detection == expected


def test_what_can_only_be_wrong_together() -> None:
    with pytest.raises(ParameterError, match=r"^stop must be empty with detokenize=False"):
        SamplingParams(stop="a", detokenize=False)
    with pytest.raises(ParameterError, match=r"^n must be 1 with temperature=0: .*, got 2$"):
        SamplingParams(n=2, temperature=0)
    SamplingParams(n=2, temperature=0.5)


def test_arguments_are_copied() -> None:
    given: dict[str, Any] = {"a": [1]}
    params = SamplingParams(extra_args=given)
    given["a"].append(2)
    assert params.extra_args == {"a": [1]}


def test_prompt_logprobs_need_the_whole_prompt_computed() -> None:
    assert SamplingParams().reads_prefix_cache
    assert not SamplingParams(prompt_logprobs=0).reads_prefix_cache
    assert SamplingParams(skip_reading_prefix_cache=False).reads_prefix_cache
    with pytest.raises(ParameterError, match=r"^skip_reading_prefix_cache must be None or True with prompt_logprobs"):
        SamplingParams(prompt_logprobs=0, skip_reading_prefix_cache=False)
    assert not SamplingParams(skip_reading_prefix_cache=True).reads_prefix_cache


@pytest.mark.parametrize(
    ("bias", "culprit"),
    [
        *(
            ({5: 1, key: 1}, key)
            for key in ("-1", "x", "", " 5", "+5", "5_0", "\u0665", "1.0", "9" * 5000, -1, 1.5, True, None)
        ),
        *(({5: 1, key: 1}, key) for key in (2**31, str(2**31), 10**400, "5", "05")),
        *(({6: 1, 5: value}, value) for value in (True, "1", None, [1], math.nan, math.inf, -math.inf)),
        (dict.fromkeys(range(MAX_BIASED_TOKENS + 1), 1.0), MAX_BIASED_TOKENS + 1),
    ],
)
def test_a_bias_that_is_refused_names_key_or_value(bias: Any, culprit: Any) -> None:
    with pytest.raises(ParameterError, match=r"^logit_bias must be a dict") as caught:
        SamplingParams(logit_bias=bias)
    assert str(caught.value).endswith(f"got {culprit!r:.100}")
    assert caught.value.parameter == "logit_bias"


def test_a_bias_is_kept_as_plain_numbers_within_limits() -> None:
    given: dict[Any, Any] = {"33203": 10**400, 2: -(10**400), "0": 3, 7: 100.5, 8: -0.5}
    params = SamplingParams(logit_bias=given)
    given[9] = 1
    assert params.logit_bias == {33203: 100, 2: -100, 0: 3, 7: 100, 8: -0.5}
    assert {type(key) for key in params.logit_bias} == {int}
    assert {type(value) for value in params.logit_bias.values()} == {float}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert SamplingParams(logit_bias={}).logit_bias is None


def test_equal_params_have_equal_hashes() -> None:
    one, other = SamplingParams(logit_bias={1: 2, 3: 4}), SamplingParams(logit_bias={3: 4, 1: 2})
    assert one == other
    assert len({one, other, SamplingParams(), SamplingParams(logit_bias={}), SamplingParams(seed=1)}) == 3


def test_min_tokens_is_within_max_tokens() -> None:
    with pytest.raises(ParameterError, match=r"^min_tokens must be at most max_tokens=4, got 5$") as caught:
        SamplingParams(min_tokens=5, max_tokens=4)
    assert caught.value.parameter == "min_tokens"
    with pytest.raises(ParameterError, match=r"max_tokens=16, got 17"):
        SamplingParams(min_tokens=17)
    assert SamplingParams(min_tokens=17, max_tokens=None).min_tokens == 17


@pytest.mark.parametrize("value", [-1, 3.5, "x"])
def test_the_wire_is_checked_like_the_caller(value: Any) -> None:
    encoded = msgspec.msgpack.encode({"temperature": value})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(encoded, type=SamplingParams)


def test_a_list_of_the_caller_is_copied() -> None:
    ids = [1, 2]
    params = SamplingParams(stop_token_ids=ids)
    ids.append(3)
    assert params.stop_token_ids == (1, 2)
    assert SamplingParams(stop_token_ids=iter([4])).stop_token_ids == (4,)  # type: ignore[arg-type]


def test_stop_tokens_are_counted_once() -> None:
    assert SamplingParams(stop_token_ids=[7, 5, 7, 5, 6]).stop_token_ids == (7, 5, 6)
    assert SamplingParams(stop_token_ids=[*range(MAX_STOP_TOKENS)] * 2).stop_token_ids == tuple(range(MAX_STOP_TOKENS))
    with pytest.raises(ParameterError, match=r"^stop_token_ids must hold at most 1024 token ids, got 1025$") as caught:
        SamplingParams(stop_token_ids=range(MAX_STOP_TOKENS + 1))
    assert caught.value.parameter == "stop_token_ids"


def test_an_output_kind_may_be_a_string() -> None:
    assert SamplingParams(output_kind="delta").output_kind is RequestOutputKind.DELTA  # type: ignore[arg-type]


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(TypeError, match="tempreature"):
        SamplingParams(tempreature=1)  # type: ignore[call-arg]


def test_instances_are_frozen() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("params", "greedy"),
    [
        ({}, False),
        ({"temperature": 0}, True),
        ({"temperature": 1e-6}, True),
        ({"temperature": 1e-5}, False),
        ({"top_k": 1}, True),
    ],
)
def test_greedy(params: dict[str, Any], greedy: bool) -> None:
    assert SamplingParams(**params).greedy is greedy
