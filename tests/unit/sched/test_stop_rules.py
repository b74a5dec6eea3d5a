"""Which token ends a request, and what is said about it."""

import pytest

from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.sched.stop_rules import StopRules

EOS = 2
STOP = 7
OTHER = 9


def rules(
    *,
    max_tokens: int | None = 10,
    stop: tuple[int, ...] = (STOP,),
    ignore_eos: bool = False,
    prompt: int = 3,
    max_model_len: int = 100,
    min_tokens: int = 0,
) -> StopRules:
    params = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop, ignore_eos=ignore_eos, min_tokens=min_tokens)
    return StopRules(AddRequest(1, "one", [5] * prompt, params, 0.0, eos_token_ids=(EOS, 3)), max_model_len)


@pytest.mark.parametrize("token", [EOS, 3])
def test_each_eos_stops_without_a_reason(token: int) -> None:
    assert rules().check(token, 1) == ("stop", None)


def test_eos_can_be_ignored() -> None:
    assert rules(ignore_eos=True).check(EOS, 1) is None


def test_a_stop_id_is_the_stop_reason() -> None:
    assert rules().check(STOP, 1) == ("stop", STOP)


def test_token_zero_can_be_a_stop_id() -> None:
    assert rules(stop=(0,)).check(0, 1) == ("stop", 0)


def test_eos_counts_before_a_stop_id() -> None:
    assert rules(stop=(EOS,)).check(EOS, 1) == ("stop", None)
    assert rules(stop=(EOS,), ignore_eos=True).check(EOS, 1) == ("stop", EOS)


def test_max_tokens_is_a_length() -> None:
    assert rules().check(OTHER, 9) is None
    assert rules().check(OTHER, 10) == ("length", None)


@pytest.mark.parametrize(("token", "verdict"), [(EOS, ("stop", None)), (STOP, ("stop", STOP))])
def test_a_stop_counts_before_the_length(token: int, verdict: tuple[str, int | None]) -> None:
    assert rules().check(token, 10) == verdict


@pytest.mark.parametrize("max_tokens", [None, 50])
def test_prompt_and_output_end_at_max_model_len(max_tokens: int | None) -> None:
    limited = rules(max_tokens=max_tokens, prompt=6, max_model_len=20)
    assert limited.check(OTHER, 13) is None
    assert limited.check(OTHER, 14) == ("length", None)


@pytest.mark.parametrize("token", [EOS, STOP])
def test_no_token_stops_before_min_tokens(token: int) -> None:
    late = rules(min_tokens=3)
    assert [late.check(token, number) for number in (1, 2, 3)] == [None] * 3
    verdict = late.check(token, 4)
    assert verdict is not None
    assert verdict == rules().check(token, 4)


@pytest.mark.parametrize("token", [EOS, STOP, OTHER])
def test_the_length_counts_whatever_min_tokens_is(token: int) -> None:
    assert rules(max_tokens=3, min_tokens=3).check(token, 3) == ("length", None)
