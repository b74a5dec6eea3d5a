"""The table of handlers, and the owner of long-lived tasks."""

import asyncio

import pytest

from ringpost.actors.base import Actor, TaskHost, handles
from ringpost.ipc.messages.control import ActorReady, Drain, Hello, Reattach, Stop, ToActor


class Listener(Actor, receives=(ToActor, Hello)):
    def __init__(self) -> None:
        self.heard: list[object] = []

    @handles(Stop, Drain)
    def _on_end(self, message: Stop | Drain) -> None:
        self.heard.append(("end", message))

    @handles(Reattach)
    def _on_reattach(self, message: Reattach) -> None:
        self.heard.append(("reattach", message))

    @handles(Hello)
    def _on_hello(self, message: Hello) -> None:
        self.heard.append(("hello", message))


def test_messages_reach_their_handlers() -> None:
    listener, other = Listener(), Listener()
    messages = [Stop(), Reattach("core0", 2), Hello("core0", 1, 1), Drain(1.0)]
    for message in messages:
        listener.dispatch(message)
    assert listener.heard == list(zip(["end", "reattach", "hello", "end"], messages, strict=True))
    assert other.heard == []
    with pytest.raises(KeyError):
        listener.dispatch(ActorReady("core0"))


def test_a_missing_handler_is_named() -> None:
    with pytest.raises(TypeError, match=r"^Deaf: handlers and received messages differ in Drain, Reattach$"):

        class Deaf(Actor, receives=(ToActor,)):
            @handles(Stop)
            def _on_stop(self, _: Stop) -> None: ...


def test_a_superfluous_handler_is_named() -> None:
    with pytest.raises(TypeError, match=r"^Eager: .* differ in Hello$"):

        class Eager(Actor, receives=(Stop,)):
            @handles(Stop)
            def _on_stop(self, _: Stop) -> None: ...

            @handles(Hello)
            def _on_hello(self, _: Hello) -> None: ...


def test_a_second_handler_is_named() -> None:
    with pytest.raises(TypeError, match=r"^Torn has two handlers for Stop$"):

        class Torn(Actor, receives=(Stop,)):
            @handles(Stop)
            def _on_stop(self, _: Stop) -> None: ...

            @handles(Stop)
            def _on_stop_too(self, _: Stop) -> None: ...


@pytest.mark.asyncio
async def test_stop_cancels_and_waits_for_the_end() -> None:
    started, cleaned = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    host = TaskHost(work(), "work")
    await started.wait()
    ended = [host.done]
    for _ in range(2):
        await host.stop()
        ended.append(host.done)
    assert ended == [False, True, True]
    assert cleaned.is_set()


@pytest.mark.asyncio
async def test_join_raises_what_the_task_raised_and_stop_does_not() -> None:
    async def fail() -> None:
        raise OSError("as it happens")

    host = TaskHost(fail(), "fail")
    with pytest.raises(OSError, match="as it happens"):
        await host.join()
    await host.stop()


@pytest.mark.asyncio
async def test_a_cancelled_join_leaves_the_task_alone() -> None:
    release = asyncio.Event()

    async def work() -> None:
        await release.wait()

    host = TaskHost(work(), "work")
    waiting = asyncio.create_task(host.join())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    before = host.done
    release.set()
    await host.join()
    assert (before, host.done) == (False, True)
