"""What a consumer gets for the core's deltas."""

from typing import Any

import pytest
from tiny_checkpoint import EOS_TOKEN_ID, FIRST_BYTE_ID, tiny_tokenizer

from ringpost.actors.errors import EngineGenerateError
from ringpost.actors.frontend.collector import RequestOutputCollector
from ringpost.actors.frontend.detokenizer import Vocabulary
from ringpost.actors.frontend.output_processor import OutputProcessor
from ringpost.actors.frontend.outputs import RequestOutput
from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.sampling import SamplingParams

VOCABULARY = Vocabulary(tiny_tokenizer(), byte_level=True)
KINDS = ["cumulative", "delta", "final_only"]


def ids(text: str) -> list[int]:
    return [FIRST_BYTE_ID + byte for byte in text.encode()]


class Requests:
    """An output processor with the collectors of its requests."""

    def __init__(self) -> None:
        self.outputs = OutputProcessor()
        self.collectors: dict[int, RequestOutputCollector] = {}

    def add(self, request: int, kind: str = "delta", external_id: str = "r", content: Any = "hi", **params: Any) -> None:
        sampling = SamplingParams(output_kind=kind, **params)  # type: ignore[arg-type]
        collector = RequestOutputCollector(external_id, delta=kind == "delta", on_abandon=lambda: None)
        detokenizer = VOCABULARY.detokenizer(skip_special_tokens=sampling.skip_special_tokens)
        self.outputs.add(request, sampling, collector, detokenizer, content)
        self.collectors[request] = collector

    def step(self, *deltas: TokenDelta) -> None:
        self.outputs.process(deltas)

    def take(self, request: int) -> RequestOutput | None:
        return self.collectors[request].get_nowait()


def shown(output: RequestOutput | None) -> tuple[str, list[int], Any, bool]:
    assert output is not None
    (completion,) = output.outputs
    assert completion.finished == output.finished
    return completion.text, completion.token_ids, completion.finish_reason, output.finished


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_output(kind: str) -> None:
    requests = Requests()
    requests.add(1, kind)
    taken = []
    for position, text, reason in ((0, "a", None), (1, "bc", None), (3, "d", "length")):
        requests.step(TokenDelta(1, position, ids(text), reason))  # type: ignore[arg-type]
        taken.append(requests.take(1))
    expected: dict[str, list[Any]] = {
        "delta": [("a", ids("a"), None, False), ("bc", ids("bc"), None, False), ("d", ids("d"), "length", True)],
        "cumulative": [("a", ids("a"), None, False), ("abc", ids("abc"), None, False), ("abcd", ids("abcd"), "length", True)],
        "final_only": [None, None, ("abcd", ids("abcd"), "length", True)],
    }
    assert [output and shown(output) for output in taken] == expected[kind]
    assert len(requests.outputs) == 0
    last = taken[-1]
    assert last is not None
    assert last.metrics.num_generation_tokens == 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_token_that_stopped_a_request_is_counted_but_not_shown(kind: str) -> None:
    requests = Requests()
    requests.add(1, kind, skip_special_tokens=False)
    requests.step(TokenDelta(1, 0, [*ids("a"), EOS_TOKEN_ID], "stop", EOS_TOKEN_ID))
    output = requests.take(1)
    assert shown(output) == ("a", [*ids("a"), EOS_TOKEN_ID], "stop", True)
    assert output is not None
    assert output.outputs[0].stop_reason == EOS_TOKEN_ID
    assert output.metrics.num_generation_tokens == 2


def test_the_last_token_of_a_full_answer_is_shown() -> None:
    requests = Requests()
    requests.add(1)
    requests.step(TokenDelta(1, 0, ids("ab"), "length"))
    assert shown(requests.take(1)) == ("ab", ids("ab"), "length", True)


def test_half_a_character_waits_and_ends_as_a_replacement() -> None:
    requests = Requests()
    requests.add(1)
    first, *rest = ids("é")
    requests.step(TokenDelta(1, 0, [first]))
    assert shown(requests.take(1)) == ("", [first], None, False)
    requests.step(TokenDelta(1, 1, rest))
    assert shown(requests.take(1)) == ("é", rest, None, False)
    requests.step(TokenDelta(1, 2, [first], "length"))
    assert shown(requests.take(1)) == ("\ufffd", [first], "length", True)


@pytest.mark.parametrize("position", [0, 2])
def test_a_lost_or_repeated_token_fails_that_request_alone(position: int) -> None:
    requests = Requests()
    requests.add(1, external_id="chat-7")
    requests.add(2)
    requests.step(TokenDelta(1, 0, [5]))
    requests.take(1)
    assert requests.outputs.process([TokenDelta(1, position, [6]), TokenDelta(2, 0, [5])]) == [1]
    with pytest.raises(EngineGenerateError, match=f"chat-7: token {position} is lost or repeated"):
        requests.take(1)
    assert requests.take(2) is not None
    assert requests.outputs.live() == [2]


def test_deltas_of_requests_that_are_not_live_are_dropped() -> None:
    requests = Requests()
    requests.add(1)
    requests.add(2)
    assert requests.outputs.discard(1)
    assert not requests.outputs.discard(1)
    requests.step(TokenDelta(1, 40, [5]), TokenDelta(99, 0, [5]), TokenDelta(2, 0, ids("x"), "length"))
    assert requests.take(1) is None
    assert shown(requests.take(2)) == ("x", ids("x"), "length", True)
    requests.step(TokenDelta(2, 1, [5]))


@pytest.mark.parametrize("kind", KINDS)
def test_abort_ends_with_what_there_is(kind: str) -> None:
    requests = Requests()
    requests.add(1, kind)
    requests.step(TokenDelta(1, 0, ids("ab")))
    requests.outputs.abort(1)
    assert shown(requests.take(1)) == ("ab", ids("ab"), "abort", True)
    assert requests.outputs.live() == []


def test_an_error_comes_after_the_tokens() -> None:
    requests = Requests()
    for request in (1, 2):
        requests.add(request)
    requests.step(TokenDelta(1, 0, ids("a")))
    requests.outputs.fail(1, OSError("it broke"))
    requests.outputs.fail(1, OSError("again"))
    requests.outputs.fail_all(OSError("all broke"))
    assert shown(requests.take(1))[0] == "a"
    for request, message in ((1, "it broke"), (2, "all broke")):
        with pytest.raises(OSError, match=message):
            requests.take(request)
    assert len(requests.outputs) == 0


def test_requests_are_found_by_the_callers_id() -> None:
    requests = Requests()
    for request, name in ((1, "a"), (2, "b"), (3, "a")):
        requests.add(request, external_id=name)
    assert requests.outputs.requests_of("a") == [1, 3]
    requests.outputs.discard(1)
    assert requests.outputs.requests_of("a") == [3]
    assert requests.outputs.requests_of("c") == []


def test_an_output_tells_about_its_request() -> None:
    requests = Requests()
    requests.add(1, content="hi")
    requests.add(2, content=[7, 8])
    assert requests.outputs.tokenized(1, ids("hi"))
    assert not requests.outputs.tokenized(9, [1])
    requests.step(TokenDelta(1, 0, [5], cached_tokens=16, scheduled=3.5), TokenDelta(2, 0, [5]))
    requests.step(TokenDelta(1, 1, [6], scheduled=9.0))
    text, tokens = requests.take(1), requests.take(2)
    assert text is not None
    assert tokens is not None
    assert (text.request_id, text.prompt, text.prompt_token_ids, text.num_cached_tokens) == ("r", "hi", ids("hi"), 16)
    assert (tokens.prompt, tokens.prompt_token_ids, tokens.num_cached_tokens) == (None, [7, 8], 0)
    metrics = text.metrics
    assert metrics.first_scheduled_time == 3.5
    assert metrics.arrival_time <= metrics.first_token_time <= metrics.last_token_time
