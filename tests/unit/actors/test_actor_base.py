"""The table of handlers, and the owner of long-lived tasks."""

import asyncio
import threading

import pytest

from ringpost.actors.base import SLOW_SECONDS, Actor, Handler, TaskHost, handles, run_abandonable, slow_after
from ringpost.ipc.messages.control import ActorReady, Drain, Hello, Reattach, Stop, ToActor
from ringpost.ipc.messages.requests import Abort


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


class Fragile(Actor, receives=(Stop, Abort)):
    @handles(Stop)
    def _on_stop(self, _: Stop) -> None:
        raise ValueError("broken")

    @handles(Abort, slow_after=3.0)
    def _on_abort(self, _: Abort) -> None:
        raise ValueError("broken")


@pytest.mark.parametrize(("message", "note"), [(Stop(), "Stop"), (Abort(7), "Abort about request 7")])
def test_a_handler_that_raises_ends_the_actor_and_the_error_tells_the_message(message: object, note: str) -> None:
    with pytest.raises(ValueError, match="broken") as caught:
        Fragile().dispatch(message)
    assert caught.value.__notes__ == [f"in the handler of {note}"]


def test_an_actor_decides_what_becomes_of_a_failure() -> None:
    failed: list[tuple[object, str]] = []

    class Tolerant(Fragile):
        def handler_failed(self, message: object, error: Exception) -> None:
            failed.append((message, str(error)))

    Tolerant().dispatch(Abort(7))
    assert failed == [(Abort(7), "broken")]


def test_handlers_have_limits_and_can_be_wrapped_in_one_actor_alone() -> None:
    limits: dict[type, float] = {}
    fragile, other = Fragile(), Fragile()

    def wrap(message_type: type, handler: Handler) -> Handler:
        limits[message_type] = slow_after(handler)
        return lambda actor, message: None

    fragile.wrap_handlers(wrap)
    fragile.dispatch(Stop())
    assert limits == {Stop: SLOW_SECONDS, Abort: 3.0}
    with pytest.raises(ValueError, match="broken"):
        other.dispatch(Stop())


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
async def test_only_the_first_cancel_counts_and_wait_sees_the_end() -> None:
    started, cleaned, release = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()
            cleaned.set()

    host = TaskHost(work(), "work")
    await started.wait()
    host.cancel()
    await asyncio.sleep(0)
    host.cancel()  # must not cut the clean-up short
    release.set()
    await host.wait()
    assert cleaned.is_set()
    await host.wait()


@pytest.mark.asyncio
async def test_a_cancelled_wait_leaves_the_task_alone() -> None:
    release, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await release.wait()
        ended.set()

    host = TaskHost(work(), "work")
    waiting = asyncio.create_task(host.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    release.set()
    await host.wait()
    assert ended.is_set()


@pytest.mark.asyncio
async def test_a_blocking_function_gives_its_result_or_its_error() -> None:
    assert await run_abandonable(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await run_abandonable(divmod, 1, 0)


def test_nobody_waits_for_an_abandoned_function() -> None:
    release, done = threading.Event(), threading.Event()

    def block() -> None:
        release.wait()
        done.set()

    async def cancel_it() -> None:
        task = asyncio.create_task(run_abandonable(block))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_it())  # comes back although the function still runs
    assert not done.is_set()
    release.set()
    assert done.wait(60)
