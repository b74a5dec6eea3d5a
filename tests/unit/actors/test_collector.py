"""The collector: merging loses nothing, whatever the pace of the consumer."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringpost.actors.errors import RequestEnded
from ringpost.actors.frontend.collector import RequestOutputCollector
from ringpost.actors.frontend.outputs import CompletionOutput, RequestOutput


def output(text: str, tokens: list[int], *, index: int = 0, reason: Any = None) -> RequestOutput:
    completion = CompletionOutput(index, text, list(tokens), reason)
    return RequestOutput("r", None, [9], [completion], finished=reason is not None)


def collector(*, delta: bool) -> RequestOutputCollector:
    return RequestOutputCollector("r", delta=delta, on_abandon=lambda: None)


def content(taken: RequestOutput | None) -> tuple[str, list[int], Any]:
    assert taken is not None
    (completion,) = taken.outputs
    return completion.text, completion.token_ids, completion.finish_reason


def test_deltas_are_joined() -> None:
    box = collector(delta=True)
    box.put(output("a", [1]))
    box.put(output("b", [2, 3]))
    box.put(output("", [], reason="length"))
    taken = box.get_nowait()
    assert content(taken) == ("ab", [1, 2, 3], "length")
    assert taken is not None
    assert taken.finished


def test_of_cumulative_outputs_the_last_stands() -> None:
    box = collector(delta=False)
    box.put(output("a", [1]))
    box.put(output("ab", [1, 2], reason="stop"))
    assert content(box.get_nowait()) == ("ab", [1, 2], "stop")


@pytest.mark.asyncio
async def test_more_than_the_last_output_is_an_error_not_a_wait() -> None:
    box = collector(delta=True)
    box.put(output("a", [1], reason="length"))
    assert (await box.get()).finished
    for _ in range(2):
        with pytest.raises(RequestEnded, match="request r has ended"):
            await box.get()
        with pytest.raises(RequestEnded):
            box.get_nowait()


@pytest.mark.asyncio
async def test_closing_wakes_who_waits() -> None:
    box = collector(delta=True)
    waiting = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two consumers"):
        await box.get()
    box.close()
    with pytest.raises(RequestEnded, match="closed by its consumer"):
        await waiting


def test_a_merge_leaves_outputs_already_taken_alone() -> None:
    box = collector(delta=True)
    box.put(output("a", [1]))
    first = box.get_nowait()
    box.put(output("b", [2]))
    box.put(output("c", [3]))
    assert content(box.get_nowait()) == ("bc", [2, 3], None)
    assert content(first) == ("a", [1], None)


def test_deltas_of_several_answers_are_joined_by_index() -> None:
    box = collector(delta=True)
    for text, index in (("x", 1), ("y", 0), ("z", 1)):
        box.put(output(text, [ord(text)], index=index))
    taken = box.get_nowait()
    assert taken is not None
    assert [(c.index, c.text, c.token_ids) for c in taken.outputs] == [(0, "y", [121]), (1, "xz", [120, 122])]


def test_an_error_comes_after_the_tokens_before_it_and_the_first_one_stands() -> None:
    box = collector(delta=True)
    box.put(output("a", [1]))
    box.put_error(OSError("first"))
    box.put_error(OSError("second"))
    assert content(box.get_nowait()) == ("a", [1], None)
    for _ in range(2):
        with pytest.raises(OSError, match="first"):
            box.get_nowait()


@pytest.mark.asyncio
async def test_get_waits_for_an_output_or_an_error() -> None:
    box = collector(delta=True)
    task = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.put(output("a", [1]))
    box.put(output("b", [2]))  # before the consumer has run
    assert content(await task) == ("ab", [1, 2], None)
    task = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.put_error(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await task


@pytest.mark.asyncio
@pytest.mark.parametrize("late", [False, True], ids=["before the output", "after the output"])
async def test_a_cancelled_get_takes_nothing(late: bool) -> None:
    box = collector(delta=True)
    task = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    if late:
        box.put(output("a", [1]))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if not late:
        box.put(output("a", [1]))
    assert content(await box.get()) == ("a", [1], None)


def test_closing_reports_the_consumer_gone() -> None:
    left: list[str] = []
    RequestOutputCollector("r", delta=True, on_abandon=lambda: left.append("r")).close()
    assert left == ["r"]


@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, 99), max_size=3)), max_size=40), st.booleans())
def test_a_slow_consumer_loses_nothing(events: list[list[int] | None], fails: bool) -> None:
    """None is a look of the consumer; a list are the tokens of one output."""
    box = collector(delta=True)
    text = ""
    tokens: list[int] = []
    for event in [*events, None]:
        if event is not None:
            box.put(output("".join(map(chr, event)), event))
        elif (taken := box.get_nowait()) is not None:
            more_text, more_tokens, _ = content(taken)
            text += more_text
            tokens += more_tokens
    sent = [token for event in events if event is not None for token in event]
    assert tokens == sent
    assert text == "".join(map(chr, sent))
    if fails:
        box.put_error(OSError("end"))
        with pytest.raises(OSError, match="end"):
            box.get_nowait()
