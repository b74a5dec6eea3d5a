"""Sessions whose engine loses processes: every answer is the undisturbed one. Over workers without a model."""

import asyncio
import random

import pytest
from conversation import Conversation
from fault_driver import BOTH, CORE, WORKER, Blow, FaultDriver, random_blows
from fault_script import Fault
from faulty_engines import LONG, FaultyEngines, greedy, held_back, prompt_of, seeded

from ringpost import AsyncLLM

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

VICTIMS = [pytest.param(victims, id="+".join(victims)) for victims in ((WORKER,), (CORE,), BOTH)]
LONGEST = 300  # tokens of a context, after which it begins anew


async def conversation(engine: AsyncLLM, driver: FaultDriver | None = None) -> Conversation:
    return Conversation(await engine.open_session(greedy()), driver)


@pytest.mark.parametrize("victims", VICTIMS)
async def test_a_turn_runs_and_other_sessions_are_idle(engines: FaultyEngines, victims: tuple[str, ...]) -> None:
    async with engines.engine() as engine:
        with FaultDriver(engine, [Blow(30, victims)]) as driver:
            talks = [await conversation(engine, driver) for _ in range(6)]
            idle = [await conversation(engine) for _ in range(2)]
            for number, talk in enumerate((*idle, *talks[:3])):
                await talk.turn(prompt_of(number, 25), greedy(2))
            before = driver.pids()
            params = [seeded(number) if number % 2 else greedy() for number in range(6)]
            asked = [talk.turn(prompt_of(number), params[number]) for number, talk in enumerate(talks)]
            await asyncio.gather(*asked)
            assert {actor for actor, pid in driver.pids().items() if pid != before[actor]} == set(victims)
            assert not driver.left
        for talk in (*idle, *talks):
            await talk.turn(prompt_of(7), greedy(20))
        for talk in idle:
            await talk.turn(prompt_of(8, 3), greedy(3))
            assert talk.cached >= len(prompt_of(8)), "its KV is there again"
        assert (await engine.describe()).sessions == 8
        assert engine.stats.finished["error"] == 0


def kill(actor: str, message: str, number: int = 1, epoch: int = 1) -> Fault:
    return Fault(do="kill", actor=actor, at=number, message=message, first_epoch=epoch, last_epoch=epoch)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([kill(CORE, "AddRequest", 3)], id="the core at a second turn"),
        pytest.param([kill(CORE, "Truncate")], id="the core at an interruption"),
        pytest.param([kill(CORE, "Fork")], id="the core at a fork"),
        pytest.param([kill(CORE, "CloseSession")], id="the core at a session's end"),
        pytest.param([kill(CORE, "Truncate"), kill(CORE, "AddRequest", epoch=2)], id="the core, and its successor at a turn"),
        pytest.param([kill(CORE, "Truncate"), kill(CORE, "Fork", epoch=2)], id="the core, and its successor at a fork"),
    ],
)
async def test_a_death_at_a_certain_message(engines: FaultyEngines, faults: list[Fault]) -> None:
    async def converse(number: int) -> None:
        talk = await conversation(engine)
        async with talk.session:
            await talk.turn(prompt_of(number, 20), greedy(5))
            await talk.turn(prompt_of(number), greedy(5))
            await talk.broken_off(prompt_of(number), 7, number % 8)
            child = await talk.forked()
            async with child.session:
                await talk.turn(prompt_of(number), greedy(5))
                await child.turn(prompt_of(number + 1), seeded(number, 5))
                second = await child.forked()
                second.session.close()
            await talk.turn(prompt_of(number + 2), greedy(5))

    async with engines.engine(*faults) as engine:
        await asyncio.gather(*map(converse, range(2)))
        await (await conversation(engine)).turn(prompt_of(9), greedy(5))
        assert [strike.fault for strike in engines.script.strikes()] == list(range(len(faults)))


@pytest.mark.parametrize("victim", [WORKER, CORE])
async def test_what_is_done_to_sessions_while_a_process_is_down(engines: FaultyEngines, victim: str) -> None:
    async with engines.engine(held_back(victim)) as engine:
        with FaultDriver(engine, []) as driver:
            talk, idle, closed = [await conversation(engine) for _ in range(3)]
            for number, one in enumerate((talk, idle, closed)):
                await one.turn(prompt_of(number), greedy(5))
            asked = asyncio.ensure_future(talk.turn(prompt_of(4), greedy()))
            while talk.session.context_length < 40:
                await asyncio.sleep(0)
            driver.strike(Blow(0, (victim,)))
        await engines.somebody_waits()
        closed.session.close()
        child = await idle.forked()
        assert idle.session.retract() == 0
        idle.context = []
        waiting = [asyncio.ensure_future(one.turn(prompt_of(5), greedy())) for one in (idle, child, await conversation(engine))]
        await asyncio.sleep(0)
        engines.go_on()
        await asyncio.gather(asked, *waiting)
        for one in (talk, idle, child):
            await one.turn(prompt_of(6), greedy(10))
        assert (await engine.describe()).sessions == 4


async def converse_at_random(engine: AsyncLLM, driver: FaultDriver, number: int) -> None:
    """Until all blows have fallen."""
    chooser = random.Random(number)
    talk = await conversation(engine, driver)
    while driver.left:
        chunk, after = prompt_of(chooser.randrange(100), chooser.randint(1, 30)), chooser.randint(1, 40)
        match chooser.choice(("turn", "turn", "interrupt", "interrupt", "retract", "fork")):
            case "turn":
                params = greedy(after) if chooser.random() < 0.5 else seeded(number, after)
                await talk.turn(chunk, params, keep=chooser.random() < 0.3)
            case "interrupt":
                await talk.broken_off(chunk, after, chooser.randint(0, after))
            case "retract":
                await talk.retracted(chunk, after)
            case _:
                parent, talk = talk, await talk.forked()
                await asyncio.gather(talk.turn(chunk, seeded(after, 10)), parent.turn(chunk, greedy(10)))
                parent.session.close()
        if len(talk.context) > LONGEST:
            talk.session.rewind(kept := chooser.randrange(20))
            talk.context = talk.context[:kept]
    await talk.turn(prompt_of(number), greedy(10))


@pytest.mark.parametrize("count", [8, pytest.param(80, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
@pytest.mark.parametrize("blocks", [2000, 60])
async def test_conversations_at_random_survive_deaths_at_random(engines: FaultyEngines, count: int, blocks: int) -> None:
    """With blocks for all, and with blocks for some, so that idle sessions and running turns lose theirs."""
    async with engines.engine(step_seconds=0.001, block_size=16, num_blocks_override=blocks) as engine:
        idle = await conversation(engine)
        await idle.turn(prompt_of(50), greedy(LONG))
        with FaultDriver(engine, random_blows(count, count, 60)) as driver:
            await asyncio.gather(*(converse_at_random(engine, driver, number) for number in range(6)))
            assert len(driver.log) >= count
        await idle.turn(prompt_of(51), greedy(LONG))
        assert engine.stats.finished["error"] == 0
        await engine.check_health()
