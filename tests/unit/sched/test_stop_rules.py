"""Which token ends a request, and what is said about it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from slot_worker import repeats

from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.sampling import RepetitionDetectionParams, SamplingParams
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


def said(number: int) -> list[int]:
    """What was said before the output's `number`-th token."""
    return list(range(100, 99 + number))


@pytest.mark.parametrize("token", [EOS, 3])
def test_each_eos_stops_without_a_reason(token: int) -> None:
    assert rules().check(token, 1, said(1)) == ("stop", None)


def test_eos_can_be_ignored() -> None:
    assert rules(ignore_eos=True).check(EOS, 1, said(1)) is None


def test_a_stop_id_is_the_stop_reason() -> None:
    assert rules().check(STOP, 1, said(1)) == ("stop", STOP)


def test_token_zero_can_be_a_stop_id() -> None:
    assert rules(stop=(0,)).check(0, 1, said(1)) == ("stop", 0)


def test_eos_counts_before_a_stop_id() -> None:
    assert rules(stop=(EOS,)).check(EOS, 1, said(1)) == ("stop", None)
    assert rules(stop=(EOS,), ignore_eos=True).check(EOS, 1, said(1)) == ("stop", EOS)


def test_max_tokens_is_a_length() -> None:
    assert rules().check(OTHER, 9, said(9)) is None
    assert rules().check(OTHER, 10, said(10)) == ("length", None)


@pytest.mark.parametrize(("token", "verdict"), [(EOS, ("stop", None)), (STOP, ("stop", STOP))])
def test_a_stop_counts_before_the_length(token: int, verdict: tuple[str, int | None]) -> None:
    assert rules().check(token, 10, said(10)) == verdict


@pytest.mark.parametrize("max_tokens", [None, 50])
def test_prompt_and_output_end_at_max_model_len(max_tokens: int | None) -> None:
    limited = rules(max_tokens=max_tokens, prompt=6, max_model_len=20)
    assert limited.check(OTHER, 13, said(13)) is None
    assert limited.check(OTHER, 14, said(14)) == ("length", None)


@pytest.mark.parametrize("token", [EOS, STOP])
def test_no_token_stops_before_min_tokens(token: int) -> None:
    late = rules(min_tokens=3)
    assert [late.check(token, number, said(number)) for number in (1, 2, 3)] == [None] * 3
    verdict = late.check(token, 4, said(4))
    assert verdict is not None
    assert verdict == rules().check(token, 4, said(4))


@pytest.mark.parametrize("token", [EOS, STOP, OTHER])
def test_the_length_counts_whatever_min_tokens_is(token: int) -> None:
    assert rules(max_tokens=3, min_tokens=3).check(token, 3, said(3)) == ("length", None)


def end_of(tokens: list[int], rule: RepetitionDetectionParams, min_tokens: int = 0, max_tokens: int = 500) -> int | None:
    """After how many of these tokens the rule ends the answer."""
    params = SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens, repetition_detection=rule)
    stop = StopRules(AddRequest(1, "one", [5], params, 0.0), 1000)
    for number, token in enumerate(tokens, 1):
        verdict = stop.check(token, number, tokens[: number - 1])
        if verdict is not None:
            assert verdict == ("repetition", None)
            return number
    return None


@pytest.mark.parametrize(
    ("tokens", "least", "most", "count", "end"),
    [
        ([1, 2, 3, 3], 1, 1, 2, 4),
        ([1, 2, 3, 3], 2, 4, 2, None),
        ([9, 1, 2, 1, 2, 1, 2], 1, 4, 3, 7),
        ([9, 1, 2, 1, 2, 1, 2], 1, 1, 3, None),
        ([1, 1, 1, 1], 2, 2, 2, 4),
        ([1, 2, 1, 3, 1, 2, 1, 3], 1, 4, 2, 8),
        ([1, 2, 1, 3, 1, 2, 1, 3], 1, 3, 2, None),
        ([1, 2, 3, 1, 2, 3], 0, 3, 2, 6),
        ([4, 4, 4], 1, 3, 4, None),
        ([4, 4, 4, 4], 1, 3, 4, 4),
        ([4] * 20, 1, 3, 2**31 - 1, None),
    ],
)
def test_a_pattern_often_enough_in_a_row_is_the_end(
    tokens: list[int], least: int, most: int, count: int, end: int | None
) -> None:
    assert end_of(tokens, RepetitionDetectionParams(max_pattern_size=most, min_pattern_size=least, min_count=count)) == end


@pytest.mark.parametrize(("min_tokens", "end"), [(0, 2), (2, 2), (3, 3), (5, 5)])
def test_there_are_min_tokens_before_a_repetition_counts(min_tokens: int, end: int) -> None:
    assert end_of([4] * 6, RepetitionDetectionParams(max_pattern_size=1), min_tokens) == end


def test_whatever_else_ends_an_answer_counts_before_a_repetition() -> None:
    params = SamplingParams(
        max_tokens=4, stop_token_ids=(STOP,), repetition_detection=RepetitionDetectionParams(max_pattern_size=1)
    )
    stop = StopRules(AddRequest(1, "one", [5], params, 0.0, eos_token_ids=(EOS,)), 100)
    assert stop.check(EOS, 2, [EOS]) == ("stop", None)
    assert stop.check(STOP, 2, [STOP]) == ("stop", STOP)
    assert stop.check(OTHER, 4, [OTHER] * 3) == ("length", None)
    assert stop.check(OTHER, 2, [OTHER]) == ("repetition", None)


@given(
    st.lists(st.integers(0, 2), max_size=30),
    st.builds(
        lambda most, least, count: RepetitionDetectionParams(
            max_pattern_size=most, min_pattern_size=min(least, most), min_count=count
        ),
        st.integers(1, 6),
        st.integers(0, 6),
        st.integers(2, 4),
    ),
)
def test_exactly_the_repetitions_are_found(tokens: list[int], rule: RepetitionDetectionParams) -> None:
    ends = [number for number in range(1, len(tokens) + 1) if repeats(tokens[:number], rule)]
    assert end_of(tokens, rule) == (ends[0] if ends else None)


@given(st.lists(st.integers(5, 6), max_size=24), st.integers(0, 24), st.integers(1, 4), st.integers(2, 4))
@example([5, 6, 5, 5, 6, 5], 4, 3, 2)  # a repetition within one that was found before
def test_an_answer_that_goes_on_elsewhere_is_judged_alike(tokens: list[int], begin: int, most: int, count: int) -> None:
    """After a restart the rules begin in the middle."""
    params = SamplingParams(
        max_tokens=None, repetition_detection=RepetitionDetectionParams(max_pattern_size=most, min_count=count)
    )

    def fresh() -> StopRules:
        return StopRules(AddRequest(1, "one", [5], params, 0.0), 100)

    followed, joined = fresh(), fresh()
    for index, token in enumerate(tokens):
        verdict = followed.check(token, index + 1, tokens[:index])
        if index >= begin:
            assert joined.check(token, index + 1, tokens[:index]) == verdict
