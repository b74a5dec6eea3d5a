"""What one turn of the event loop delivers."""

from array import array
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from ringpost.actors.frontend.slices import pieces, take_slice
from ringpost.ipc.messages.outputs import TokenDelta, TokenLogprobs


def entry(count: int) -> TokenLogprobs:
    return TokenLogprobs(-1.0, 1, array("i", range(count)).tobytes(), array("f", [-1.0] * count).tobytes())


@given(st.integers(0, 200), st.integers(0, 40), st.integers(0, 3), st.integers(1, 9))
def test_pieces_say_the_same(length: int, count: int, tokens: int, start: int) -> None:
    prompt = [TokenLogprobs(-float(place), place, *entry_columns(count)) for place in range(length)]
    delta = TokenDelta(1, 5, list(range(tokens)), "length", prompt_logprobs=prompt, prompt_start=start, cached_tokens=3)
    parts = list(pieces(delta))
    assert [one for part in parts for one in part.prompt_logprobs] == prompt
    for part in parts[:-1]:
        assert (part.request, part.position, part.tokens, part.finish_reason) == (1, 5, [], None)
        assert sum(1 + len(one.top_logprobs) // 4 for one in part.prompt_logprobs) <= 1024
    at = start
    for part in parts:
        if part.prompt_logprobs:
            assert part.prompt_start == at
            at += len(part.prompt_logprobs)
    assert (parts[-1].tokens, parts[-1].finish_reason, parts[-1].cached_tokens) == (list(range(tokens)), "length", 3)


def entry_columns(count: int) -> tuple[bytes, bytes]:
    one = entry(count)
    return one.top_ids, one.top_logprobs


def test_a_slice_is_bounded_and_never_empty() -> None:
    plain = deque([TokenDelta(number, 0, [5]) for number in range(100)])
    assert len(take_slice(plain)) == 64
    assert len(plain) == 36
    rich = deque([TokenDelta(number, 0, [5], logprobs=[entry(511)]) for number in range(5)])
    assert [len(take_slice(rich)) for _ in range(4)] == [2, 2, 1, 0]
    huge = deque([TokenDelta(1, 0, [5], logprobs=[entry(5000)]), TokenDelta(2, 0, [5])])
    assert len(take_slice(huge)) == 1
