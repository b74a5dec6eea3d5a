"""How a wait is spent, by a clock that only the looks and the sleeps move."""

from collections.abc import Callable, Sequence

import pytest

from ringpost.ipc.parking import Parkable
from ringpost.ipc.waiting import Adaptive, Park, Spin, WaitStrategy

LOOK_NS, LIMIT = 1_000, 10_000


class Scene:
    """A clock, and one end that becomes ready at a time; in place of `time` and `wait_any` in the module."""

    def __init__(self) -> None:
        self.now = 0
        self.due = 0  # when the end becomes ready
        self.looks = 0
        self.sleeps = 0

    def monotonic_ns(self) -> int:
        return self.now

    async def wait_any(self, ends: Sequence[Parkable]) -> None:
        assert list(ends) == [self]
        self.sleeps += 1
        self.now = max(self.now, self.due)

    def ready(self) -> bool:
        self.looks += 1
        self.now += LOOK_NS
        return self.now > self.due

    def arm(self, wake: Callable[[], None]) -> None:
        raise AssertionError("only wait_any arms")

    def disarm(self, waited: int) -> None:
        raise AssertionError("only wait_any disarms")

    def count_lost_wakeup(self) -> None:
        raise AssertionError("nothing was lost")

    async def wait(self, strategy: WaitStrategy, gap: int) -> tuple[int, int]:
        """Wait for what comes after `gap` nanoseconds; returns how often it looked and slept."""
        before = self.looks, self.sleeps
        self.due = self.now + gap
        await strategy.wait([self])
        return self.looks - before[0], self.sleeps - before[1]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene()
    monkeypatch.setattr("ringpost.ipc.waiting.time", scene)
    monkeypatch.setattr("ringpost.ipc.waiting.wait_any", scene.wait_any)
    return scene


@pytest.mark.asyncio
async def test_park_sleeps_at_once(scene: Scene) -> None:
    assert await scene.wait(Park(), 0) == (0, 1)


@pytest.mark.asyncio
async def test_spin_looks_until_it_is_ready(scene: Scene) -> None:
    assert await scene.wait(Spin(LIMIT), 0) == (1, 0)
    assert await scene.wait(Spin(LIMIT), 5 * LOOK_NS) == (6, 0)


@pytest.mark.asyncio
async def test_spin_sleeps_when_its_time_is_over(scene: Scene) -> None:
    assert await scene.wait(Spin(LIMIT), 100 * LIMIT) == (LIMIT // LOOK_NS + 1, 1)


@pytest.mark.asyncio
async def test_adaptive_begins_by_sleeping(scene: Scene) -> None:
    assert await scene.wait(Adaptive(LIMIT), 0) == (0, 1)


@pytest.mark.asyncio
async def test_adaptive_spins_once_the_gaps_are_short(scene: Scene) -> None:
    strategy = Adaptive(LIMIT)
    waits = [await scene.wait(strategy, LOOK_NS) for _ in range(20)]
    assert waits[0] == (0, 1)
    assert waits[-1] == (2, 0)
    first = waits.index((2, 0))
    assert 1 < first < 10
    assert set(waits[first:]) == {(2, 0)}


@pytest.mark.asyncio
async def test_adaptive_sleeps_at_once_while_the_gaps_are_long(scene: Scene) -> None:
    strategy = Adaptive(LIMIT)
    assert {await scene.wait(strategy, 2 * LIMIT) for _ in range(20)} == {(0, 1)}


@pytest.mark.asyncio
async def test_one_long_silence_does_not_end_the_spinning(scene: Scene) -> None:
    strategy = Adaptive(LIMIT)
    for _ in range(40):
        await scene.wait(strategy, LOOK_NS)
    looks, sleeps = await scene.wait(strategy, 10**12)
    assert (looks, sleeps) == (LIMIT // LOOK_NS + 1, 1)
    assert await scene.wait(strategy, LOOK_NS) == (2, 0)


@pytest.mark.asyncio
async def test_silence_after_silence_ends_the_spinning(scene: Scene) -> None:
    strategy = Adaptive(LIMIT)
    for _ in range(40):
        await scene.wait(strategy, LOOK_NS)
    waits = [await scene.wait(strategy, 10**12) for _ in range(10)]
    assert waits[-1] == (0, 1)
