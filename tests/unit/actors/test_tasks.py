"""Coroutines side by side: results, the first failure, and nobody left behind."""

import asyncio
import gc

import pytest

from ringpost.actors.tasks import all_of, first_of


class Waiter:
    """A coroutine that waits for ever, and how it ended."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended_by: BaseException | None = None

    async def wait(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            self.ended_by = error
            raise


async def fail(after: asyncio.Event | None = None) -> None:
    if after is not None:
        await after.wait()
    raise ValueError("this one")


async def give(value: int) -> int:
    return value


async def nothing() -> None:
    pass


@pytest.mark.asyncio
async def test_all_results_in_order() -> None:
    assert await all_of(give(value) for value in (3, 1, 2)) == [3, 1, 2]
    assert await all_of([]) == []


@pytest.mark.asyncio
async def test_the_first_failure_ends_all() -> None:
    waiter = Waiter()
    with pytest.raises(ValueError, match="this one"):
        await all_of([waiter.wait(), fail(waiter.begun)])
    assert isinstance(waiter.ended_by, asyncio.CancelledError)


@pytest.mark.asyncio
async def test_the_first_to_end_ends_the_others() -> None:
    waiter = Waiter()
    await first_of(waiter.wait(), waiter.begun.wait())
    assert isinstance(waiter.ended_by, asyncio.CancelledError)


@pytest.mark.asyncio
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_one_that_ends_at_once_leaves_none_unawaited(place: int) -> None:
    """A coroutine that is dropped without a start is a warning, and warnings are errors here."""
    waits = [Waiter().wait(), Waiter().wait()]
    waits.insert(place, nothing())
    await first_of(*waits)
    waits.clear()
    gc.collect()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.asyncio
async def test_a_failure_is_raised_as_it_is() -> None:
    waiter = Waiter()
    with pytest.raises(ValueError, match="this one"):
        await first_of(waiter.wait(), fail(waiter.begun))
    with pytest.raises(ValueError, match="this one"):
        await first_of(fail(), Waiter().wait())
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.asyncio
async def test_cancelling_the_caller_ends_them_too() -> None:
    waiter = Waiter()
    task = asyncio.ensure_future(first_of(waiter.wait(), Waiter().wait()))
    await waiter.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(waiter.ended_by, asyncio.CancelledError)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await first_of(Waiter().wait(), Waiter().wait())
    assert asyncio.all_tasks() == {asyncio.current_task()}
