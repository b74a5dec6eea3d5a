"""What a consumer gets for the core's deltas."""

from typing import Any

import pytest
from live_requests import register
from tiny_checkpoint import EOS_TOKEN_ID, FIRST_BYTE_ID

from ringpost.actors.errors import EngineGenerateError
from ringpost.actors.frontend.collector import RequestOutputCollector
from ringpost.actors.frontend.detokenizer import NoText, Words
from ringpost.actors.frontend.live_request import LiveRequest
from ringpost.actors.frontend.output_processor import OutputProcessor
from ringpost.actors.frontend.outputs import RequestOutput
from ringpost.ipc.messages.config import SchedulerConfig
from ringpost.ipc.messages.outputs import TokenDelta, TokenLogprobs
from ringpost.ipc.messages.requests import AddRequest, Sibling
from ringpost.ipc.messages.sampling import SamplingParams

KINDS = ["cumulative", "delta", "final_only"]


def ids(text: str) -> list[int]:
    return [FIRST_BYTE_ID + byte for byte in text.encode()]


class Requests:
    """An output processor with the collectors of its requests."""

    def __init__(self) -> None:
        self.outputs = OutputProcessor()
        self.requests: dict[int, LiveRequest] = {}
        self.collectors: dict[int, RequestOutputCollector] = {}

    def add(self, request: int, kind: str = "delta", external_id: str = "r", content: Any = "hi", **params: Any) -> None:
        sampling = SamplingParams(output_kind=kind, **params)  # type: ignore[arg-type]
        self.requests[request], self.collectors[request] = register(self.outputs, request, sampling, content, external_id)

    def step(self, *deltas: TokenDelta) -> None:
        self.outputs.process(deltas)

    def take(self, request: int) -> RequestOutput | None:
        return self.collectors[request].get_nowait()


def shown(output: RequestOutput | None) -> tuple[str, list[int], Any, bool]:
    assert output is not None
    (completion,) = output.outputs
    assert completion.finished == output.finished
    return completion.text, list(completion.token_ids), completion.finish_reason, output.finished


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
    with pytest.raises(EngineGenerateError, match=f"chat-7: AssertionError: token {position} is lost or repeated"):
        requests.take(1)
    assert requests.take(2) is not None
    assert requests.outputs.live() == [requests.requests[2]]


def test_deltas_of_requests_that_are_not_live_are_dropped() -> None:
    requests = Requests()
    requests.add(1)
    requests.add(2)
    assert requests.outputs.abandon(requests.requests[1]) == [1]
    assert requests.outputs.abandon(requests.requests[1]) == []
    requests.step(TokenDelta(1, 40, [5]), TokenDelta(99, 0, [5]), TokenDelta(2, 0, ids("x"), "length"))
    assert requests.take(1) is None
    assert shown(requests.take(2)) == ("x", ids("x"), "length", True)
    requests.step(TokenDelta(2, 1, [5]))


@pytest.mark.parametrize("kind", KINDS)
def test_abort_ends_with_what_there_is(kind: str) -> None:
    requests = Requests()
    requests.add(1, kind)
    requests.step(TokenDelta(1, 0, ids("ab")))
    assert requests.outputs.abort(requests.requests[1]) == [1]
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
    first, _, third = requests.requests.values()
    assert requests.outputs.requests_of({"a"}) == [first, third]
    requests.outputs.abandon(first)
    assert requests.outputs.requests_of({"a"}) == [third]
    assert requests.outputs.requests_of({"c"}) == []


def test_an_output_tells_about_its_request() -> None:
    requests = Requests()
    requests.add(1, content="hi")
    requests.add(2, content=[7, 8])
    assert requests.outputs.tokenized(requests.requests[1], ids("hi"))
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


def logprobs(*values: float) -> list[TokenLogprobs]:
    return [TokenLogprobs(value, 1) for value in values]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_string_ends_the_request_at_the_token_that_completes_it(kind: str) -> None:
    requests = Requests()
    requests.add(1, kind, stop=["c"], logprobs=0)
    assert requests.outputs.process([TokenDelta(1, 0, ids("abcd"), "length", logprobs=logprobs(-1, -2, -3, -4))]) == []
    output = requests.take(1)
    assert shown(output) == ("ab", ids("abc"), "stop", True)
    assert output is not None
    (completion,) = output.outputs
    assert (completion.stop_reason, completion.cumulative_logprob) == ("c", -6)
    assert completion.logprobs is not None
    assert [next(iter(place)) for place in completion.logprobs] == ids("abc")
    assert requests.outputs.stats.generation_tokens == 3
    assert len(requests.outputs) == 0


def test_the_core_is_told_of_an_end_that_it_does_not_know() -> None:
    requests = Requests()
    requests.add(1, stop="b")
    requests.add(2, stop="z")
    assert requests.outputs.process([TokenDelta(1, 0, ids("ab")), TokenDelta(2, 0, ids("ab"))]) == [1]
    assert requests.outputs.process([TokenDelta(1, 2, ids("ab"))]) == []


def test_a_stop_string_waits_for_min_tokens() -> None:
    requests = Requests()
    requests.add(1, stop=["ab"], min_tokens=2)
    requests.step(TokenDelta(1, 0, ids("ab")))
    assert shown(requests.take(1)) == ("ab", ids("ab"), None, False)
    requests.step(TokenDelta(1, 2, ids("cab")))
    assert shown(requests.take(1)) == ("c", ids("cab"), "stop", True)


def test_what_is_held_back_for_a_stop_string_comes_at_the_end() -> None:
    requests = Requests()
    requests.add(1, stop=["bcd"])
    requests.step(TokenDelta(1, 0, ids("ab")))
    assert shown(requests.take(1)) == ("a", ids("ab"), None, False)
    requests.step(TokenDelta(1, 2, ids("c"), "length"))
    assert shown(requests.take(1)) == ("bc", ids("c"), "length", True)


def test_the_stop_token_is_shown_on_request() -> None:
    for include, text in ((False, "a"), (True, "ab")):
        requests = Requests()
        requests.add(1, include_stop_str_in_output=include)
        requests.step(TokenDelta(1, 0, ids("ab"), "stop", ids("b")[0]))
        assert shown(requests.take(1)) == (text, ids("ab"), "stop", True)


def test_answers_to_one_prompt() -> None:
    requests = Requests()
    requests.add(1, n=3)
    assert len(requests.outputs) == 3
    requests.step(TokenDelta(1, 0, ids("a"), cached_tokens=16), TokenDelta(3, 0, ids("c"), cached_tokens=32))
    requests.step(TokenDelta(3, 1, ids("d"), "length"))
    output = requests.take(1)
    assert output is not None
    assert [(one.index, one.text, one.finish_reason) for one in output.outputs] == [(0, "a", None), (2, "cd", "length")]
    assert (output.finished, output.num_cached_tokens, output.metrics.num_generation_tokens) == (False, 16, 3)
    requests.step(TokenDelta(2, 0, ids("b"), "length"))
    assert requests.outputs.abort(requests.requests[1]) == [1]
    output = requests.take(1)
    assert output is not None
    assert [(one.index, one.text, one.finish_reason) for one in output.outputs] == [(0, "", "abort"), (1, "b", "length")]
    assert output.finished
    stats = requests.outputs.stats
    assert (stats.finished["length"], stats.finished["abort"], stats.time_to_first_token.count) == (0, 0, 1), "not accepted"
    assert len(requests.outputs) == 0


def test_a_failure_of_one_answer_is_that_of_the_request() -> None:
    requests = Requests()
    requests.add(1, n=3)
    requests.step(TokenDelta(1, 0, ids("a")), TokenDelta(3, 0, ids("c"), "length"))
    assert requests.outputs.fail(2, OSError("it broke")) == [1]
    output = requests.take(1)
    assert output is not None
    assert ([one.text for one in output.outputs], output.finished) == (["a", "c"], False)
    with pytest.raises(OSError, match="it broke"):
        requests.take(1)


def test_a_restarted_core_gets_each_answer_on_its_own() -> None:
    requests = Requests()
    requests.add(1, n=3, content=[7])
    live = requests.requests[1]
    assert requests.outputs.tokenized(live, [7])
    params = SamplingParams(seed=5, prompt_logprobs=1)
    message = AddRequest(1, "r", [7], params, 0.0, siblings=(Sibling(2, 6), Sibling(3, 7)))
    assert requests.outputs.sending(live, message)
    requests.step(TokenDelta(2, 0, ids("b")), TokenDelta(3, 0, ids("c"), "length"))
    resumed = list(requests.outputs.unfinished())
    assert [(one.request, one.params.seed, one.params.prompt_logprobs, one.output, one.siblings) for one in resumed] == [
        (1, 5, 1, [], ()),
        (2, 6, None, ids("b"), ()),
    ]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_of_the_prompt_come_in_parts_and_perhaps_again(kind: str, flat: bool) -> None:
    requests = Requests()
    requests.add(1, kind, content=ids("abcd"), prompt_logprobs=0, flat_logprobs=flat)
    requests.step(TokenDelta(1, 0, [], prompt_logprobs=logprobs(-1, -2), prompt_start=1))
    assert requests.take(1) is None
    requests.step(TokenDelta(1, 0, [], prompt_logprobs=logprobs(-1), prompt_start=1))  # after a preemption
    requests.step(TokenDelta(1, 0, ids("x"), prompt_logprobs=logprobs(-2, -3), prompt_start=2))
    first = requests.take(1)
    requests.step(TokenDelta(1, 1, ids("y"), "length"))
    last = requests.take(1)
    assert last is not None
    for output in (first, last):
        if output is None or (output is last and kind == "delta"):
            continue
        told = output.prompt_logprobs
        assert told is not None
        assert not told[0]
        assert [place and (*place,) for place in list(told)[1:]] == [(token,) for token in ids("bcd")]
        assert [next(iter(place.values())).logprob for place in list(told)[1:] if place] == [-1, -2, -3]
    if kind == "delta":
        assert last.prompt_logprobs is None


def test_lost_logprobs_of_the_prompt_fail_the_request() -> None:
    requests = Requests()
    requests.add(1, content=ids("abcd"), prompt_logprobs=0)
    requests.step(TokenDelta(1, 0, [], prompt_logprobs=logprobs(-3), prompt_start=3))
    with pytest.raises(EngineGenerateError, match="logprobs of the prompt before token 3 are lost"):
        requests.take(1)


def test_how_much_of_a_prompt_was_put_into_the_cache() -> None:
    params = SamplingParams()
    live = LiveRequest("r", [1], params, Words(NoText, lambda _: b""), [7] * 40, cache_block=16)
    live.apply(TokenDelta(1, 0, [5], cached_tokens=16))
    output = live.take()
    assert output is not None
    assert (output.num_cached_tokens, output.num_cache_creation_tokens) == (16, 16)


def test_what_a_caller_does_to_an_output_reaches_no_restarted_core() -> None:
    requests = Requests()
    requests.add(1, content=[7, 8])
    live = requests.requests[1]
    message = AddRequest(1, "r", [7, 8], SamplingParams(seed=1), 0.0)
    assert requests.outputs.tokenized(live, list(message.prompt))
    assert requests.outputs.sending(live, message)
    requests.step(TokenDelta(1, 0, ids("a")))
    output = requests.take(1)
    assert output is not None
    output.prompt_token_ids.append(99)
    assert [one.prompt for one in requests.outputs.unfinished()] == [[7, 8]]


def test_only_a_token_clears_a_request_of_deaths() -> None:
    requests = Requests()
    requests.add(1, content=ids("abcd"), prompt_logprobs=0)
    live = requests.requests[1]
    assert requests.outputs.tokenized(live, ids("abcd"))
    assert requests.outputs.sending(live, AddRequest(1, "r", ids("abcd"), SamplingParams(seed=1, prompt_logprobs=0), 0.0))
    for life in (1, 2):
        requests.outputs.core_died(SchedulerConfig(), 1)
        requests.step(TokenDelta(1, 0, [], prompt_logprobs=logprobs(-1), prompt_start=1))
        assert [(one.deaths, one.deaths_alone) for one in requests.outputs.unfinished()] == [(life, life)]
    requests.step(TokenDelta(1, 0, ids("x")))
    assert [(one.deaths, one.deaths_alone) for one in requests.outputs.unfinished()] == [(0, 0)]
