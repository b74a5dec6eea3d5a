"""Processes that die or hang are replaced, and streams go on as if nothing had happened. Over workers without a model."""

import os
import signal
import threading
from typing import Any

import pytest
from fault_driver import BOTH, CORE, WORKER, Blow, FaultDriver, random_blows
from fault_script import Fault
from faulty_engines import (
    LONG,
    Asked,
    FaultyEngines,
    answer_all,
    begun,
    greedy,
    mixed,
    prompt_of,
    seeded,
)
from scripted_worker import tokens_of

from ringpost import SamplingParams
from ringpost.actors.watch import EngineWatch

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

VICTIMS = [pytest.param(victims, id="+".join(victims)) for victims in ((WORKER,), (CORE,), BOTH)]


@pytest.mark.parametrize("victims", VICTIMS)
async def test_streams_survive_a_death(engines: FaultyEngines, victims: tuple[str, ...]) -> None:
    """And their numbers go on."""
    asked = mixed(6)
    async with engines.engine() as engine:
        with FaultDriver(engine, [Blow(30, victims)]) as driver:
            before = driver.pids()
            await answer_all(engine, asked, driver)
            assert {struck.actor for struck in driver.log if struck.unfinished == len(asked)} == set(victims)
            after = driver.pids()
        assert {actor for actor in after if after[actor] != before[actor]} == set(victims)
        await engine.check_health()
        stats = engine.stats
        assert stats.finished["length"] == len(asked) == sum(stats.finished.values())
        assert stats.generation_tokens == len(asked) * LONG
        assert stats.prompt_tokens == sum(len(prompt) for prompt, _ in asked)
        assert stats.time_to_first_token.count == stats.request_queue_time.count == len(asked)
        assert stats.inter_token_latency.count == len(asked) * (LONG - 1)
        await answer_all(engine, mixed(2, max_tokens=3))


def kill(actor: str, message: str, number: int = 1, epoch: int = 1) -> Fault:
    return Fault(do="kill", actor=actor, at=number, message=message, first_epoch=epoch, last_epoch=epoch)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([kill(WORKER, "StepPlan")], id="the worker at its first step", marks=pytest.mark.long),
        pytest.param([kill(WORKER, "StepPlan", 9), kill(WORKER, "Reset", epoch=2)], id="its successor at once"),
        pytest.param(
            [kill(WORKER, "StepPlan", 9), kill(WORKER, "InitCache", epoch=2)],
            id="its successor a little later",
            marks=pytest.mark.long,
        ),
        pytest.param([kill(WORKER, "StepPlan", 9), kill(CORE, "Reattach", epoch=2)], id="the core after its worker"),
        pytest.param([Fault(do="raise", at=5, message="StepPlan")], id="the worker by a failure of its own"),
        pytest.param([kill(CORE, "AddRequest")], id="the core at the first request", marks=pytest.mark.long),
        pytest.param([kill(CORE, "StepResult")], id="the core at its first result"),
        pytest.param(
            [kill(CORE, "StepResult", 9), kill(CORE, "AddRequest", 2, epoch=2)],
            id="its successor at the second request",
            marks=pytest.mark.long,
        ),
        pytest.param([kill(CORE, "StepResult", 9), kill(WORKER, "Reattach", epoch=2)], id="the worker after its core"),
    ],
)
async def test_a_death_at_a_certain_message(engines: FaultyEngines, faults: list[Fault]) -> None:
    async with engines.engine(*faults) as engine:
        await answer_all(engine, mixed(4, max_tokens=20))
        assert [strike.fault for strike in engines.script.strikes()] == list(range(len(faults)))


@pytest.mark.parametrize("scheduling", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_the_rules_of_an_end_count_what_came_before_a_death(engines: FaultyEngines, scheduling: bool) -> None:
    """The stop tokens and the fewest tokens lie on either side of it."""

    def stopping_at(index: int, params: SamplingParams, **more: Any) -> SamplingParams:
        tokens = tokens_of(prompt_of(index), params)
        chosen = next(token for token in tokens[index:] if token not in tokens[:index])
        return SamplingParams(stop_token_ids=(chosen,), temperature=params.temperature, seed=params.seed, **more)

    common = {"max_tokens": LONG, "ignore_eos": True}
    asked: list[Asked] = [
        *((prompt_of(index), stopping_at(index, greedy(), **common)) for index in (5, 25, 40)),
        *((prompt_of(index), stopping_at(index, seeded(3), **common)) for index in (6, 26, 41)),
        *((prompt_of(index), stopping_at(index, seeded(4), min_tokens=60, **common)) for index in (7, 27)),
        *((prompt_of(index), stopping_at(index, greedy(), min_tokens=30, **common)) for index in (4, 24)),
    ]
    async with engines.engine(async_scheduling=scheduling) as engine:
        with FaultDriver(engine, [Blow(100, (CORE,)), Blow(50, (WORKER,)), Blow(50, BOTH)]) as driver:
            streams = await answer_all(engine, asked, driver)
            assert not driver.left
    assert {stream.reason for stream in streams} == {"stop", "length"}


@pytest.mark.long
async def test_requests_that_wait_for_their_turn_survive(engines: FaultyEngines) -> None:
    async with engines.engine(max_num_seqs=2) as engine:
        blows = [Blow(10, (WORKER,)), Blow(10, (CORE,)), Blow(10, BOTH)]
        with FaultDriver(engine, blows, patient=False) as driver:
            await answer_all(engine, mixed(8, max_tokens=15), driver)
            assert not driver.left
            assert all(struck.unfinished > 2 for struck in driver.log)


async def test_long_prompts_and_a_small_cache(engines: FaultyEngines) -> None:
    """What is computed again comes in chunks, not everything fits at once, and what is equal is found in the cache."""
    asked: list[Asked] = [(prompt_of(number // 2, 100), greedy(40)) for number in range(6)]
    options = {"max_num_batched_tokens": 32, "num_blocks_override": 30, "block_size": 16}
    async with engines.engine(**options) as engine:
        with FaultDriver(engine, [Blow(20, (WORKER,)), Blow(20, (CORE,)), Blow(20, BOTH)]) as driver:
            await answer_all(engine, asked, driver)
            assert not driver.left


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.long)])
async def test_many_deaths_in_a_row(engines: FaultyEngines, count: int) -> None:
    """More than may come without a finished step."""
    async with engines.engine(step_seconds=0.001) as engine:
        assert engine.config.runtime.max_restarts < count
        with FaultDriver(engine, random_blows(count, count)) as driver:
            while driver.left:
                await answer_all(engine, mixed(4, max_tokens=200), driver)
            assert len({struck.pid for struck in driver.log}) == len(driver.log) >= count
        assert engine.stats.finished["error"] == 0


@pytest.mark.parametrize("victim", [WORKER, CORE])
async def test_a_process_that_hangs_is_replaced(engines: FaultyEngines, victim: str) -> None:
    """Its successor may take longer to begin than anybody may take for a message."""
    begins_late = Fault(do="delay", actor=victim, at=0, first_epoch=2, value=1.0)
    async with engines.engine(begins_late, hang_timeout=0.4) as engine:
        with FaultDriver(engine, [Blow(30, (victim,), signal.SIGSTOP)]) as driver:
            before = driver.pids()
            await answer_all(engine, mixed(4), driver)
            after = driver.pids()
        assert {actor for actor in after if after[actor] != before[actor]} == {victim}
        await engine.check_health()


async def test_a_supervisor_that_was_held_up_replaces_nobody(engines: FaultyEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the worker did nothing meanwhile either."""
    looks: list[float] = []
    look_once = EngineWatch.look

    def look(self: EngineWatch, now: float) -> None:
        look_once(self, now)
        looks.append(now)

    async with engines.engine(hang_timeout=0.4) as engine:
        with FaultDriver(engine, []) as driver:
            before = driver.pids()
            asked = (prompt_of(1), greedy(50_000))
            (collector,) = await begun(engine, [asked])
            monkeypatch.setattr(EngineWatch, "look", look)
            os.kill(before[WORKER], signal.SIGSTOP)
            threading.Event().wait(1.5)
            os.kill(before[WORKER], signal.SIGCONT)
            while len(looks) < 8:
                tokens = (await collector.get()).outputs[0].token_ids
                await engine.check_health()
            assert driver.pids() == before
        assert tokens == tokens_of(prompt_of(1), greedy(len(tokens)))
        collector.close()
