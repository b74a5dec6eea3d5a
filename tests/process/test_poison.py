"""Requests that their worker or core cannot survive: they alone fail, and are told why. Over workers without a model."""

import asyncio
from collections.abc import Sequence

import pytest
from deadly_scheduler import DEADLY_TOKEN, EXIT_CODE, DiesOfPlanning, DiesOfResult, path_of
from fault_driver import CORE, WORKER, Blow, FaultDriver
from fault_script import ALWAYS, TOLD, Fault
from faulty_engines import Asked, FaultyEngines, answer_all, greedy, mixed, prompt_of, seeded
from scripted_worker import tokens_of

from ringpost import AsyncLLM, EngineGenerateError

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

GOOD = 15
POISON: Asked = ([*prompt_of(50), DEADLY_TOKEN, *prompt_of(51, 5)], greedy())


async def error_of(engine: AsyncLLM, asked: Asked) -> tuple[str, list[int]]:
    """Why a request fails, and it alone; and the tokens that came before."""
    tokens: list[int] = []
    try:
        async for output in engine.generate(*asked):
            tokens = list(output.outputs[0].token_ids)
    except EngineGenerateError as error:
        return str(error), tokens
    pytest.fail("it did not fail")


async def errors_among(engine: AsyncLLM, good: Sequence[Asked], bad: Sequence[Asked], place: int) -> list[str]:
    """What the bad ones are told, asked behind so many good ones, which all are answered; at the end all is well again."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer_all(engine, good[:place]))
        errors = [tasks.create_task(error_of(engine, question)) for question in bad]
        tasks.create_task(answer_all(engine, good[place:]))
    await answer_all(engine, mixed(2, max_tokens=3))
    assert engine.num_unfinished_requests == 0
    assert engine.stats.finished["error"] == len(bad)
    await engine.check_health()
    return [error.result()[0] for error in errors]


async def test_a_request_that_raises_fails_alone(engines: FaultyEngines) -> None:
    raises = Fault(do="raise", prompt_token=DEADLY_TOKEN, times=ALWAYS)
    async with engines.engine(raises) as engine:
        before = engine.process_table()
        assert await errors_among(engine, mixed(GOOD, 20), [POISON], 7) == [TOLD]
        assert engine.process_table() == before


@pytest.mark.parametrize("place", [0, pytest.param(GOOD, marks=pytest.mark.long)])
async def test_a_request_that_kills_its_worker(engines: FaultyEngines, place: int) -> None:
    """Three times, at last alone; the others are computed again as often as needed."""
    kills = Fault(do="kill", prompt_token=DEADLY_TOKEN, times=ALWAYS)
    async with engines.engine(kills) as engine:
        (error,) = await errors_among(engine, mixed(GOOD, 20), [POISON], place)
        (*_, last) = strikes = engines.script.strikes()
        assert error.startswith(f"{WORKER} (pid {last.pid}): ProcessDied: killed by signal 9; ")
        assert len(strikes) == 3


@pytest.mark.parametrize(
    ("scheduler", "place"),
    [
        (DiesOfPlanning, GOOD),
        pytest.param(DiesOfPlanning, 0, marks=pytest.mark.long),
        pytest.param(DiesOfResult, 7, marks=pytest.mark.long),
    ],
)
async def test_a_request_that_kills_its_core(engines: FaultyEngines, scheduler: type, place: int) -> None:
    async with engines.engine(scheduler_cls=path_of(scheduler)) as engine:
        (error,) = await errors_among(engine, mixed(GOOD, 20), [POISON], place)
        assert error.startswith(f"{CORE} (pid ")
        assert f"exited with code {EXIT_CODE}; " in error


async def test_a_request_that_kills_in_the_middle_of_its_answer(engines: FaultyEngines) -> None:
    """What came before is delivered, once."""
    tokens = tokens_of(*POISON)
    index = next(index for index in range(30, len(tokens)) if tokens[index] not in tokens[:index])
    kills = Fault(do="kill", prompt_token=DEADLY_TOKEN, sampled=tokens[index], times=ALWAYS)
    async with engines.engine(kills) as engine:
        good = asyncio.ensure_future(answer_all(engine, mixed(3)))
        error, before = await error_of(engine, POISON)
        await good
        assert "killed by signal 9" in error
        assert before == tokens[:index]
        assert len(engines.script.strikes()) == 3


@pytest.mark.long
async def test_two_requests_that_kill(engines: FaultyEngines) -> None:
    kills = [Fault(do="kill", prompt_token=token, times=ALWAYS) for token in (DEADLY_TOKEN, DEADLY_TOKEN + 1)]
    bad: list[Asked] = [POISON, ([*prompt_of(60), DEADLY_TOKEN + 1], greedy())]
    async with engines.engine(*kills) as engine:
        for error in await errors_among(engine, mixed(GOOD, 20), bad, 7):
            assert "killed by signal 9" in error


@pytest.mark.long
async def test_others_do_not_wait_for_ever_for_what_is_tried_alone(engines: FaultyEngines) -> None:
    """A request that comes while suspects run one by one has its turn."""
    kills = Fault(do="kill", prompt_token=DEADLY_TOKEN, times=2)
    async with engines.engine(kills) as engine:
        await answer_all(engine, [POISON, *mixed(4, 20)])
        assert engine.stats.finished["length"] == 5
        assert engine.stats.finished["error"] == 0


async def test_who_only_waited_at_two_deaths_is_not_blamed_for_the_third(engines: FaultyEngines) -> None:
    """Two cores die while it waits for its turn, then a worker while it runs for the first time."""
    runs: Asked = (prompt_of(1), greedy(200))
    waits: Asked = (prompt_of(2), seeded(77, 20))
    kills = Fault(do="kill", seed=77)
    async with engines.engine(kills, max_num_seqs=1) as engine:
        with FaultDriver(engine, [Blow(5, (CORE,)), Blow(5, (CORE,))], patient=False) as driver:
            await answer_all(engine, [runs, waits], driver)
            assert not driver.left
        assert len(engines.script.strikes()) == 1
