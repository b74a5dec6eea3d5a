"""The core's side of an outputs mailbox, with logprobs: nothing lost, in order, in messages that fit."""

from collections import defaultdict
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mailboxes import fill, joined, receive_all

from ringpost.actors.engine_core import output_port
from ringpost.actors.engine_core.deltas import BYTES_A_DELTA, beginning, merge_deltas, rest_of, size_of
from ringpost.actors.engine_core.output_port import Flow, OutputPort
from ringpost.ipc.errors import WouldBlock
from ringpost.ipc.messages.outputs import StepOutputs, TokenDelta, TokenLogprobs, columns_that_fit

pytestmark = pytest.mark.usefixtures("no_leaks")


def entry(number: int, columns: int = 8) -> TokenLogprobs:
    """What is said of a token, told apart by its number, with so many bytes in its columns."""
    return TokenLogprobs(-float(number), number + 1, bytes(columns // 2), bytes(columns - columns // 2))


def delta_of(request: int, position: int, tokens: int = 1, columns: int = 8, **more: Any) -> TokenDelta:
    numbers = range(position, position + tokens)
    return TokenDelta(request, position, list(numbers), logprobs=[entry(number, columns) for number in numbers], **more)


def prompt_of(request: int, start: int, end: int, columns: int = 8) -> TokenDelta:
    entries = [entry(number, columns) for number in range(start, end)]
    return TokenDelta(request, 0, [], prompt_logprobs=entries, prompt_start=start)


@given(st.builds(delta_of, st.integers(0, 2**63), st.integers(0, 2**31), st.integers(0, 5), st.integers(0, 999)))
def test_a_size_is_at_least_the_encoded_one(delta: TokenDelta) -> None:
    large = msgspec.structs.replace(
        delta,
        prompt_logprobs=delta.logprobs,
        prompt_start=2**31 - 1,
        finish_reason="repetition",
        stop_reason=2**31 - 1,
        scheduled=1.1,
        queued=1.1,
        cached_tokens=2**31,
        preemptions=2**31,
    )
    for one in (delta, large):
        assert len(msgspec.msgpack.encode(one)) <= size_of(one)


def test_merging_joins_what_is_said_of_prompt_and_tokens() -> None:
    first = merge_deltas(prompt_of(1, 1, 5), prompt_of(1, 5, 8))
    assert first == prompt_of(1, 1, 8)
    both = merge_deltas(first, delta_of(1, 0, scheduled=2.0, queued=1.0, cached_tokens=0, preemptions=1))
    last = merge_deltas(both, delta_of(1, 1, 2, finish_reason="stop", preemptions=2))
    expected: dict[str, Any] = {"prompt_logprobs": first.prompt_logprobs, "prompt_start": 1}
    expected |= {"scheduled": 2.0, "queued": 1.0, "preemptions": 2}
    assert last == delta_of(1, 0, 3, finish_reason="stop", **expected)


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [((5, 9), (1, 4), (5, 9)), ((5, 9), (1, 9), (5, 9)), ((5, 9), (3, 12), (5, 12)), ((5, 9), (10, 12), (5, 9))],
    ids=["known", "known to the end", "partly known", "some left out"],
)
def test_what_comes_again_is_joined_once(first: tuple[int, int], second: tuple[int, int], merged: tuple[int, int]) -> None:
    assert merge_deltas(prompt_of(1, *first), prompt_of(1, *second)) == prompt_of(1, *merged)


@given(prompt=st.integers(0, 6), tokens=st.integers(1, 6), columns=st.integers(0, 300), room=st.integers(0, 1500))
def test_a_beginning_and_the_rest_are_the_whole(prompt: int, tokens: int, columns: int, room: int) -> None:
    more = {"prompt_logprobs": prompt_of(1, 3, 3 + prompt, columns).prompt_logprobs, "prompt_start": 3}
    whole = delta_of(1, 4, tokens, columns, finish_reason="stop", **more)
    part = beginning(whole, room)
    assert size_of(part) <= room or len(part.prompt_logprobs) + len(part.tokens) == 1
    assert not part.tokens or len(part.prompt_logprobs) == prompt, "the prompt's come first"
    assert part.tokens or part.prompt_logprobs
    if part is not whole:
        assert part.finish_reason is None
        assert merge_deltas(part, rest_of(whole, part)) == whole


def test_much_is_cut_into_messages_that_fit() -> None:
    with joined(1 << 20) as (sender, receiver):
        port = OutputPort(sender)
        port.put_deltas([prompt_of(1, 1, 500, 400)])
        port.put_deltas([delta_of(1, 0, 500, 400)])
        received = []
        port.flush(1)
        while port.ends():
            received += receive_all(receiver)
            port.flush(1)
        received += receive_all(receiver)
        sizes = [len(msgspec.msgpack.encode(message)) for message in received]
        assert 1 << 15 < max(sizes) <= 1 << 17
        deltas = [delta for message in received for delta in message.deltas]
        entries = [one for delta in deltas for one in delta.prompt_logprobs]
        assert entries == prompt_of(1, 1, 500, 400).prompt_logprobs
        assert [one for delta in deltas for one in delta.logprobs] == delta_of(1, 0, 500, 400).logprobs


def test_what_fits_into_no_slice_but_into_a_message_is_sent_alone() -> None:
    with joined(1 << 20) as (sender, receiver):
        most = columns_that_fit(1 << 20)
        port = OutputPort(sender)
        port.put_deltas([delta_of(1, 0), delta_of(2, 0, columns=most), delta_of(3, 0)])
        assert port.flush(1) == Flow([], [])
        received = receive_all(receiver)
        while port.ends():
            port.flush(1)
            received += receive_all(receiver)
        deltas = [delta for message in received for delta in message.deltas]
        assert deltas == [delta_of(1, 0), delta_of(2, 0, columns=most), delta_of(3, 0)]


def test_what_fits_into_no_message_is_reported_and_keeps_nobody_waiting() -> None:
    with joined() as (sender, receiver):
        port = OutputPort(sender)
        port.put_deltas([delta_of(1, 0, columns=4096), delta_of(2, 0)])
        assert port.flush(1) == Flow([], [], (1,))
        assert receive_all(receiver) == [StepOutputs(1, [delta_of(2, 0)])]
        assert port.flush(2) == Flow([], [])
        assert port.ends() == []


def test_a_request_is_overfull_by_the_bytes_of_its_logprobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_port, "PENDING_BYTES", 2000)
    with joined() as (sender, receiver):
        fill(sender)
        port = OutputPort(sender)
        port.put_deltas([delta_of(1, 0, columns=1000), prompt_of(2, 1, 11, 100)])
        assert port.flush(1) == Flow([], [])
        port.put_deltas([delta_of(1, 1, columns=1000), prompt_of(2, 11, 31, 100)])
        assert port.flush(2) == Flow([1, 2], [])
        drained: list[int] = []
        while port.ends():
            receive_all(receiver)
            drained += port.flush(3).drained
        assert sorted(drained) == [1, 2]


def test_who_adds_to_very_much_in_all_is_overfull(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_port, "ALL_PENDING_BYTES", 3000)
    with joined() as (sender, receiver):
        fill(sender)
        port = OutputPort(sender)
        port.put_deltas([delta_of(1, 0, columns=1000), delta_of(2, 0, columns=1000), delta_of(3, 0)])
        assert port.flush(1) == Flow([], [])
        port.put_deltas([delta_of(2, 1, columns=1000), TokenDelta(4, 0, [5])])
        assert port.flush(2) == Flow([2], []), "those without logprobs have a limit of their own"
        port.forget(1)
        port.put_deltas([delta_of(3, 1)])
        assert port.flush(3) == Flow([], [])
        drained: list[int] = []
        while port.ends():
            receive_all(receiver)
            drained += port.flush(4).drained
        assert drained == [2]
        fill(sender)
        port.put_deltas([delta_of(5, 0, columns=1000), delta_of(6, 0, columns=1000)])
        assert port.flush(5) == Flow([], []), "nothing of what was sent counts"


@given(st.lists(st.none() | st.tuples(st.integers(0, 2), st.integers(1, 40), st.booleans()), max_size=40), st.integers(0, 600))
@settings(deadline=None)
def test_whatever_the_readers_pace_nothing_is_lost(events: list[tuple[int, int, bool] | None], columns: int) -> None:
    """None is the reader taking one message; a request gets logprobs of its prompt until the first token."""
    sent: dict[int, list[TokenLogprobs]] = defaultdict(list)
    got: dict[int, list[TokenLogprobs]] = defaultdict(list)
    prompts: dict[int, int] = defaultdict(int)
    told: dict[int, int] = defaultdict(int)

    def take(message: StepOutputs) -> None:
        for delta in message.deltas:
            assert delta.position == len(got[delta.request])
            assert delta.tokens == [-int(one.logprob) for one in delta.logprobs]
            got[delta.request] += delta.logprobs
            if delta.prompt_logprobs:
                assert delta.prompt_start == told[delta.request]
                told[delta.request] += len(delta.prompt_logprobs)

    with joined() as (sender, receiver):
        port = OutputPort(sender)
        for step, event in enumerate(events):
            if event is None:
                try:
                    take(receiver.receive_nowait())
                except WouldBlock:
                    assert not port.ends()
            else:
                request, count, of_prompt = event
                if of_prompt and not sent[request]:
                    port.put_deltas([prompt_of(request, prompts[request], prompts[request] + count, columns)])
                    prompts[request] += count
                else:
                    delta = delta_of(request, len(sent[request]), count, columns)
                    port.put_deltas([delta])
                    sent[request] += delta.logprobs
            port.flush(step)
        while port.ends():
            take(receiver.receive_nowait())
            port.flush(0)
        for message in receive_all(receiver):
            take(message)
    assert {request: one for request, one in got.items() if one} == {request: one for request, one in sent.items() if one}
    assert {request: n for request, n in told.items() if n} == {request: n for request, n in prompts.items() if n}


def test_a_delta_without_logprobs_costs_no_more_than_its_tokens() -> None:
    assert size_of(TokenDelta(1, 0, [1, 2, 3])) == BYTES_A_DELTA + 15
