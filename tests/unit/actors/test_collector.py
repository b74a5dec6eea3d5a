"""The collector: a consumer of any pace gets all that has come, once and in order."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringpost.actors.errors import RequestEnded
from ringpost.actors.frontend.collector import RequestOutputCollector
from ringpost.actors.frontend.detokenizer import Words
from ringpost.actors.frontend.live_request import LiveRequest
from ringpost.actors.frontend.outputs import RequestOutput
from ringpost.ipc.messages.outputs import TokenDelta, TokenLogprobs
from ringpost.ipc.messages.sampling import SamplingParams


class Letters:
    """A detokenizer: a token is a character."""

    def prime(self, tokens: Any) -> None:
        pass

    def push(self, tokens: Any) -> str:
        return "".join(map(chr, tokens))

    def flush(self) -> str:
        return ""


class Box:
    """A collector, and the core at its other end."""

    def __init__(self, kind: str = "delta", **params: Any) -> None:
        sampling = SamplingParams(output_kind=kind, **params)  # type: ignore[arg-type]
        words = Words(Letters, lambda token: chr(token).encode())
        self.live = LiveRequest("r", range(sampling.n), sampling, words, [9])
        self.left: list[str] = []
        self.collector = RequestOutputCollector(self.live, on_abandon=lambda: self.left.append("r"))
        self.logprobs = sampling.logprobs is not None

    def put(self, text: str, reason: Any = None, *, index: int = 0) -> None:
        tokens = [ord(character) for character in text]
        logprobs = [TokenLogprobs(-0.5, 1) for _ in tokens] if self.logprobs else []
        position = len(self.live.answers[index].token_ids)
        self.live.apply(TokenDelta(index, position, tokens, reason, logprobs=logprobs))
        self.collector.wake()

    def take(self) -> list[tuple[int, str, Any]] | None:
        output = self.collector.get_nowait()
        return None if output is None else content(output)


def content(output: RequestOutput) -> list[tuple[int, str, Any]]:
    for completion in output.outputs:
        assert completion.token_ids == [ord(character) for character in completion.text]
    return [(completion.index, completion.text, completion.finish_reason) for completion in output.outputs]


def test_a_late_consumer_gets_all_at_once() -> None:
    for kind in ("delta", "cumulative", "final_only"):
        box = Box(kind, logprobs=0)
        box.put("a")
        box.put("bc")
        box.put("", "length")
        output = box.collector.get_nowait()
        assert output is not None
        assert output.finished
        assert content(output) == [(0, "abc", "length")]
        logprobs = output.outputs[0].logprobs
        assert logprobs is not None
        assert len(logprobs) == 3
        assert output.outputs[0].cumulative_logprob == -1.5


def test_each_kind_at_the_pace_of_the_answer() -> None:
    expected = {"delta": ["a", "bc", "d"], "cumulative": ["a", "abc", "abcd"], "final_only": [None, None, "abcd"]}
    for kind, texts in expected.items():
        box, taken = Box(kind), []
        for text, reason in (("a", None), ("bc", None), ("d", "stop")):
            box.put(text if reason is None else text + "!", reason)  # the last token of a stop is not shown
            output = box.collector.get_nowait()
            taken.append(None if output is None else output.outputs[0].text)
        assert taken == texts


def test_outputs_already_taken_do_not_change() -> None:
    for kind in ("delta", "cumulative"):
        box = Box(kind, logprobs=0)
        box.put("a")
        first = box.collector.get_nowait()
        box.put("bc")
        assert first is not None
        assert content(first) == [(0, "a", None)]
        assert first.metrics.num_generation_tokens == 1
        logprobs = first.outputs[0].logprobs
        assert logprobs is not None
        assert len(logprobs) == 1


def test_answers_come_by_index_and_end_once() -> None:
    box = Box(n=3)
    for text, index in (("x", 2), ("y", 0), ("z", 2)):
        box.put(text, index=index)
    assert box.take() == [(0, "y", None), (2, "xz", None)]
    box.put("q", "length", index=0)
    assert box.take() == [(0, "q", "length")]
    box.put("", "length", index=2)
    box.put("w", "length", index=1)
    output = box.collector.get_nowait()
    assert output is not None
    assert output.finished
    assert content(output) == [(1, "w", "length"), (2, "", "length")]
    with pytest.raises(RequestEnded):
        box.take()


def test_final_only_waits_for_all_answers() -> None:
    box = Box("final_only", n=2)
    box.put("b", "length", index=1)
    assert box.take() is None
    box.put("a", "length", index=0)
    assert box.take() == [(0, "a", "length"), (1, "b", "length")]


def test_an_output_every_so_many_tokens() -> None:
    box, taken = Box(stream_interval=3), []
    for text in "abcdefgh":
        box.put(text)
        taken.append(box.take())
    box.put("", "length")
    taken.append(box.take())
    assert [one and one[0][1] for one in taken] == ["a", None, None, "bcd", None, None, "efg", None, "h"]


def test_what_an_interval_holds_back_comes_before_an_error() -> None:
    box = Box(stream_interval=10)
    for text in "abc":
        box.put(text)
    assert box.take() == [(0, "abc", None)]
    box.put("d")
    assert box.take() is None
    box.live.tell_rest()
    box.collector.put_error(OSError("gone"))
    assert box.take() == [(0, "d", None)]
    with pytest.raises(OSError, match="gone"):
        box.take()


@pytest.mark.asyncio
async def test_more_than_the_last_output_is_an_error_not_a_wait() -> None:
    box = Box()
    box.put("a", "length")
    assert (await box.collector.get()).finished
    for _ in range(2):
        with pytest.raises(RequestEnded, match="request r has ended"):
            await box.collector.get()
        with pytest.raises(RequestEnded):
            box.take()


@pytest.mark.asyncio
async def test_closing_wakes_who_waits() -> None:
    box = Box()
    waiting = asyncio.create_task(box.collector.get())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two consumers"):
        await box.collector.get()
    box.collector.close()
    assert box.left == ["r"]
    with pytest.raises(RequestEnded, match="closed by its consumer"):
        await waiting


def test_an_error_comes_after_the_tokens_before_it_and_the_first_one_stands() -> None:
    box = Box()
    box.put("a")
    box.collector.put_error(OSError("first"))
    box.collector.put_error(OSError("second"))
    assert box.take() == [(0, "a", None)]
    for _ in range(2):
        with pytest.raises(OSError, match="first"):
            box.take()


@pytest.mark.asyncio
async def test_get_waits_for_an_output_or_an_error() -> None:
    box = Box()
    task = asyncio.create_task(box.collector.get())
    await asyncio.sleep(0)
    box.put("a")
    box.put("b")  # before the consumer has run
    assert content(await task) == [(0, "ab", None)]
    task = asyncio.create_task(box.collector.get())
    await asyncio.sleep(0)
    box.collector.put_error(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await task


@pytest.mark.asyncio
@pytest.mark.parametrize("late", [False, True], ids=["before the output", "after the output"])
async def test_a_cancelled_get_takes_nothing(late: bool) -> None:
    box = Box()
    task = asyncio.create_task(box.collector.get())
    await asyncio.sleep(0)
    if late:
        box.put("a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if not late:
        box.put("a")
    assert content(await box.collector.get()) == [(0, "a", None)]


@given(
    st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 2), st.text("abc", max_size=3))), max_size=40),
    st.sampled_from(["delta", "cumulative"]),
    st.integers(1, 4),
)
def test_a_slow_consumer_loses_nothing(events: list[tuple[int, str] | None], kind: str, interval: int) -> None:
    """None is a look of the consumer; else so much text of an answer."""
    box = Box(kind, n=3, stream_interval=interval)
    seen = ["", "", ""]
    for event in events:
        if event is not None:
            box.put(event[1], index=event[0])
            continue
        for index, text, _ in box.take() or []:
            seen[index] = seen[index] + text if kind == "delta" else text
    box.live.tell_rest()
    box.collector.put_error(OSError("end"))
    if box.live.has_output:
        for index, text, _ in box.take() or []:
            seen[index] = seen[index] + text if kind == "delta" else text
    sent = [event for event in events if event is not None]
    assert seen == ["".join(text for index, text in sent if index == number) for number in range(3)]
    with pytest.raises(OSError, match="end"):
        box.take()
