"""The core's side of an outputs mailbox: merged while there is no room, whole and in order in the end."""

from collections import defaultdict
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mailboxes import fill, joined, note, receive_all

from ringpost.actors.engine_core.deltas import merge_deltas
from ringpost.actors.engine_core.output_port import PENDING_TOKENS, Flow, OutputPort
from ringpost.ipc.errors import WouldBlock
from ringpost.ipc.messages.outputs import StepOutputs, TokenDelta, UtilityReply

pytestmark = pytest.mark.usefixtures("no_leaks")


def test_a_step_is_one_message_when_there_is_room() -> None:
    with joined() as (sender, receiver):
        port = OutputPort(sender)
        port.put_deltas([TokenDelta(1, 0, [5]), TokenDelta(2, 0, [6])])
        port.put(note(7))
        port.flush(3)
        assert receive_all(receiver) == [StepOutputs(3, [TokenDelta(1, 0, [5]), TokenDelta(2, 0, [6])]), note(7)]
        port.flush(4)
        assert receive_all(receiver) == []
        assert port.ends() == []


def test_without_room_deltas_are_merged_and_nothing_is_lost() -> None:
    with joined() as (sender, receiver):
        fill(sender)
        port = OutputPort(sender)
        for position in range(100):
            port.put_deltas([TokenDelta(1, position, [position], scheduled=1.5 if position == 0 else 0.0)])
            port.put_deltas([TokenDelta(2, position, [position], "length" if position == 99 else None, cached_tokens=16)])
            if position % 50 == 0:
                port.put(note(position))
            port.flush(position)
        assert port.ends() == [sender]
        assert {type(message) for message in receive_all(receiver)} == {UtilityReply}
        port.flush(100)
        tokens = list(range(100))
        deltas = [TokenDelta(1, 0, tokens, scheduled=1.5), TokenDelta(2, 0, tokens, "length", cached_tokens=16)]
        assert receive_all(receiver) == [StepOutputs(100, deltas), note(0), note(50)]
        assert port.ends() == []


def test_many_tokens_are_cut_into_messages_that_fit() -> None:
    with joined(1 << 20) as (sender, receiver):
        port = OutputPort(sender)
        deltas = [TokenDelta(request, 0, [2**31 - 1] * 5000) for request in range(20)]
        port.put_deltas(deltas)
        port.flush(1)
        received = receive_all(receiver)
        assert len(received) > 1
        assert [delta for message in received for delta in message.deltas] == deltas


def test_many_requests_are_cut_into_messages_that_fit() -> None:
    """A delta takes room besides its tokens: 40,000 ends of requests are more than one message can hold."""
    with joined(1 << 22) as (sender, receiver):
        port = OutputPort(sender)
        deltas = [TokenDelta(2**48 + request, 8191, [49151], "length", None, 8000, 12345.678) for request in range(40_000)]
        port.put_deltas(deltas)
        port.flush(1)
        received = receive_all(receiver)
        sizes = [len(msgspec.msgpack.encode(message)) for message in received]
        assert [delta for message in received for delta in message.deltas] == deltas
        assert max(sizes) < (1 << 20) // 2 - 16


def test_merging_joins_neighbours_only() -> None:
    first = TokenDelta(1, 3, [5, 6], cached_tokens=16, scheduled=2.0)
    merged = merge_deltas(first, TokenDelta(1, 5, [7], "stop", 7))
    assert merged == TokenDelta(1, 3, [5, 6, 7], "stop", 7, 16, 2.0)
    with pytest.raises(AssertionError):
        merge_deltas(first, TokenDelta(1, 6, [7]))


def tokens_of(request: int, position: int, count: int) -> TokenDelta:
    return TokenDelta(request, position, list(range(position, position + count)))


def test_a_request_with_much_pending_is_overfull_until_all_of_it_is_sent() -> None:
    with joined() as (sender, receiver):
        port = OutputPort(sender)
        fill(sender)
        port.put_deltas([tokens_of(1, 0, PENDING_TOKENS - 1), tokens_of(2, 0, 5)])
        assert port.flush(1) == Flow([], [])
        port.put_deltas([tokens_of(1, PENDING_TOKENS - 1, 1), tokens_of(2, 5, 1)])
        assert port.flush(2) == Flow([1], [])
        port.put_deltas([tokens_of(1, PENDING_TOKENS, 1)])  # was in flight
        assert port.flush(3) == Flow([], [])
        receive_all(receiver)
        assert port.flush(4) == Flow([], [1])
        assert receive_all(receiver) == [StepOutputs(4, [tokens_of(1, 0, PENDING_TOKENS + 1), tokens_of(2, 0, 6)])]
        assert port.flush(5) == Flow([], [])


def test_a_part_of_it_is_not_enough() -> None:
    with joined() as (sender, receiver):
        port = OutputPort(sender)
        port.put_deltas([tokens_of(1, 0, 3000)])
        flows = [port.flush(1)]
        received = []
        while port.ends():
            received += receive_all(receiver)
            flows.append(port.flush(1))
        received += receive_all(receiver)
        assert (flows[0], flows[-1]) == (Flow([1], []), Flow([], [1]))
        assert all(flow == Flow([], []) for flow in flows[1:-1])
        assert len(flows) > 3
        assert [token for message in received for token in message.deltas[0].tokens] == list(range(3000))


def test_much_at_once_is_not_overfull_where_there_is_room() -> None:
    with joined(1 << 16) as (sender, _):
        port = OutputPort(sender)
        port.put_deltas([tokens_of(1, 0, 3 * PENDING_TOKENS)])
        assert port.flush(1) == Flow([], [])


def test_nothing_is_sent_of_a_request_that_nobody_waits_for() -> None:
    with joined() as (sender, receiver):
        port = OutputPort(sender)
        fill(sender)
        port.put_deltas([tokens_of(number, 0, PENDING_TOKENS) for number in (1, 2)])
        port.forget(2)
        assert port.flush(1) == Flow([1], [])
        port.put_deltas([tokens_of(3, 0, 1)])
        port.forget(1)
        port.forget(4)
        receive_all(receiver)
        assert port.flush(2) == Flow([], [1])
        assert receive_all(receiver) == [StepOutputs(2, [tokens_of(3, 0, 1)])]


def test_nothing_is_encoded_in_vain_while_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with joined() as (sender, receiver):
        port = OutputPort(sender)
        fill(sender)
        attempts = []
        send = sender.send_nowait

        def counted(message: Any) -> None:
            attempts.append(message)
            send(message)

        monkeypatch.setattr(sender, "send_nowait", counted)
        for position in range(10):
            port.put_deltas([tokens_of(1, position, 1)])
            port.flush(position)
        assert len(attempts) == 1
        receive_all(receiver)
        port.flush(10)
        assert receive_all(receiver) == [StepOutputs(10, [tokens_of(1, 0, 10)])]


@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 4), st.integers(0, 300))), max_size=60))
@settings(deadline=None)
def test_whatever_the_readers_pace_every_request_gets_its_tokens_in_order(events: list[tuple[int, int] | None]) -> None:
    """None is the reader taking one message, a pair some tokens of a request."""
    sent: dict[int, int] = defaultdict(int)
    got: dict[int, list[int]] = defaultdict(list)

    def take(message: Any) -> None:
        for delta in message.deltas:
            assert delta.position == len(got[delta.request])
            got[delta.request] += delta.tokens

    with joined() as (sender, receiver):
        port = OutputPort(sender)
        for step, event in enumerate(events):
            if event is None:
                try:
                    take(receiver.receive_nowait())
                except WouldBlock:
                    assert not port.ends()
            else:
                request, count = event
                port.put_deltas([TokenDelta(request, sent[request], list(range(sent[request], sent[request] + count)))])
                sent[request] += count
            port.flush(step)
        while port.ends() or sum(map(len, got.values())) < sum(sent.values()):
            take(receiver.receive_nowait())
            port.flush(0)
    assert {request: tokens for request, tokens in got.items() if tokens} == {r: list(range(n)) for r, n in sent.items() if n}
