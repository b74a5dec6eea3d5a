"""Questions to another actor: answered, refused, too late, without a peer, given up. Nothing of them is left."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from ringpost.actors.asking import Asks
from ringpost.actors.errors import EngineDeadError, EngineGenerateError, NoAnswerError
from ringpost.ipc.messages.outputs import UtilityReply
from ringpost.ipc.messages.requests import DescribeEngine

pytestmark = pytest.mark.asyncio

LONG = 60.0  # a deadline that only a hung test meets
Send = Callable[[DescribeEngine], Awaitable[None]]


class Peer:
    """Takes every message, and answers when the test says so."""

    def __init__(self) -> None:
        self.asks: Asks[UtilityReply] = Asks("core0")
        self.heard: list[DescribeEngine] = []
        self.sent = asyncio.Event()

    async def send(self, message: DescribeEngine) -> None:
        self.heard.append(message)
        self.sent.set()

    def ask(self, number: int, deadline: float = LONG, send: Send | None = None) -> asyncio.Task[UtilityReply]:
        message = DescribeEngine(number)
        return asyncio.create_task(self.asks.ask(send or self.send, message, number, deadline))


async def no_room(_: DescribeEngine) -> None:
    await asyncio.Event().wait()


async def test_each_question_gets_its_own_answer() -> None:
    peer = Peer()
    questions = [peer.ask(number) for number in (1, 2)]
    await peer.sent.wait()
    await asyncio.sleep(0)
    assert peer.heard == [DescribeEngine(1), DescribeEngine(2)]
    assert len(peer.asks) == 2
    for number in (2, 1):
        peer.asks.answer(number, UtilityReply(number, message=f"to {number}"))
    assert [(await question).message for question in questions] == ["to 1", "to 2"]
    assert len(peer.asks) == 0


async def test_an_answer_that_is_there_before_send_returns_counts() -> None:
    peer = Peer()

    async def send(message: DescribeEngine) -> None:
        peer.asks.answer(message.call, UtilityReply(message.call, message="at once"))

    assert (await peer.ask(1, send=send)).message == "at once"


async def test_a_refusal_is_an_error_with_its_reason() -> None:
    peer = Peer()
    question = peer.ask(1)
    await peer.sent.wait()
    peer.asks.answer(1, UtilityReply(1, ok=False, message="not now"))
    with pytest.raises(EngineGenerateError, match=r"^not now$"):
        await question
    assert len(peer.asks) == 0


@pytest.mark.parametrize("stuck", ["answer", "room"])
async def test_a_passed_deadline_names_actor_message_and_time(stuck: str) -> None:
    peer = Peer()
    with pytest.raises(NoAnswerError, match=r"^core0 has not answered DescribeEngine in 0\.01 s$"):
        await peer.ask(1, 0.01, send=no_room if stuck == "room" else None)
    assert len(peer.asks) == 0
    peer.asks.answer(1, UtilityReply(1))  # comes too late
    question = peer.ask(2)
    await asyncio.sleep(0)
    assert not question.done()
    peer.asks.answer(2, UtilityReply(2, message="for the second"))
    assert (await question).message == "for the second"


async def test_a_second_answer_and_one_nobody_waits_for_are_ignored() -> None:
    peer = Peer()
    question = peer.ask(1)
    await peer.sent.wait()
    for text in ("first", "second"):
        peer.asks.answer(1, UtilityReply(1, message=text))
    peer.asks.answer(99, UtilityReply(99))
    assert (await question).message == "first"


async def test_the_end_of_the_peer_ends_every_question_by_an_error_of_its_own() -> None:
    peer = Peer()
    questions = [peer.ask(number) for number in (1, 2)]
    await peer.sent.wait()
    await asyncio.sleep(0)
    reason = EngineDeadError("core0 died")
    peer.asks.fail(reason)
    outcomes = await asyncio.gather(*questions, return_exceptions=True)
    assert [repr(outcome) for outcome in outcomes] == [repr(reason)] * 2
    assert len({id(error) for error in (*outcomes, reason)}) == 3
    assert len(peer.asks) == 0


async def test_what_send_raises_is_raised_also_after_the_end_of_the_peer() -> None:
    peer = Peer()

    async def send(_: DescribeEngine) -> None:
        peer.asks.fail(EngineDeadError("core0 died"))  # nobody takes this one; that must be no warning
        raise OSError("no way there")

    with pytest.raises(OSError, match=r"^no way there$"):
        await peer.ask(1, send=send)
    assert len(peer.asks) == 0


async def test_a_timeout_of_send_itself_is_no_passed_deadline() -> None:
    async def send(_: DescribeEngine) -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match=r"^of its own$"):
        await Peer().ask(1, send=send)


@pytest.mark.parametrize("stuck", ["answer", "room"])
async def test_a_cancelled_question_leaves_nothing(stuck: str) -> None:
    peer = Peer()
    question = peer.ask(1, send=no_room if stuck == "room" else None)
    await asyncio.sleep(0)
    assert len(peer.asks) == 1
    question.cancel()
    with pytest.raises(asyncio.CancelledError):
        await question
    assert len(peer.asks) == 0
    peer.asks.answer(1, UtilityReply(1))


async def test_who_is_asked_is_watched_from_before_the_sending_to_the_end() -> None:
    seen: list[str] = []

    @contextmanager
    def watch(peer: str) -> Iterator[None]:
        seen.append(f"asks {peer}")
        try:
            yield
        finally:
            seen.append("asks nobody")

    asks: Asks[UtilityReply] = Asks("core0", watch)

    async def send(_: DescribeEngine) -> None:
        seen.append("sends")
        raise OSError

    with pytest.raises(OSError):
        await asks.ask(send, DescribeEngine(1), 1, LONG)
    assert seen == ["asks core0", "sends", "asks nobody"]
