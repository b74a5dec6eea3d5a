"""SamplingParams: ranges, messages, and values of its own."""

import math
from typing import Any

import msgspec
import pytest

from ringpost.ipc.messages.errors import ParameterError
from ringpost.ipc.messages.sampling import MAX_BIASED_TOKENS, MAX_SEED, MAX_STOP_TOKENS, RequestOutputKind, SamplingParams

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
    with pytest.raises(ValueError) as caught:
        SamplingParams(**{field: value})
    culprit = value[0] if field == "stop_token_ids" and isinstance(value, list) else value
    assert str(caught.value).startswith(f"{field} must be ")
    assert f"{culprit!r:.100}" in str(caught.value)


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
