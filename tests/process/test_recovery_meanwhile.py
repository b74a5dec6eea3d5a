"""What is asked of an engine while a process of it is down; and engines that give up. Over workers without a model."""

import asyncio
import os
import signal

import pytest
from fault_driver import CORE, WORKER, Blow, FaultDriver
from fault_script import ALWAYS, Fault
from faulty_engines import (
    LONG,
    Asked,
    FaultyEngines,
    answer_all,
    begun,
    greedy,
    held_back,
    mixed,
    prompt_of,
    seeded,
    tokens_left,
    until,
)
from process_tree import all_end
from scripted_worker import tokens_of

from ringpost import AsyncLLM, EngineDeadError, RequestOutputCollector
from ringpost.actors.errors import EngineRecoveringError

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

DOWN = pytest.mark.parametrize("victim", [WORKER, CORE])


def pid_of(engine: AsyncLLM, actor: str) -> int:
    return next(process.pid for process in engine.process_table() if process.actor == actor)


async def error_of(collector: RequestOutputCollector) -> EngineDeadError:
    """What a request ends by when the engine does."""
    with pytest.raises(EngineDeadError) as caught:
        await tokens_left(collector)
    return caught.value


@DOWN
async def test_requests_that_come_meanwhile_are_answered(engines: FaultyEngines, victim: str) -> None:
    """Those before the supervisor knows of the death, and those after."""
    async with engines.engine(held_back(victim)) as engine:
        asked = mixed(3)
        (first,) = await begun(engine, asked[:1])
        os.kill(pid_of(engine, victim), signal.SIGKILL)
        others = [asyncio.ensure_future(answer_all(engine, asked[1:2]))]
        await engines.somebody_waits()
        with pytest.raises(EngineRecoveringError, match=rf"{victim} .*killed by signal 9"):
            await engine.check_health()
        others.append(asyncio.ensure_future(answer_all(engine, asked[2:])))
        await until(lambda: engine.num_unfinished_requests == len(asked))
        engines.go_on()
        await asyncio.gather(*others)
        assert await tokens_left(first) == tokens_of(*asked[0])
        await engine.check_health()
        assert engine.stats.finished["length"] == len(asked)


async def test_requests_that_found_no_room_in_the_mailbox(engines: FaultyEngines) -> None:
    """Of a core that stood still and then died. Some were sent, some were being sent, and some had not begun."""
    asked: list[Asked] = [(prompt_of(number, 20_000), greedy(2)) for number in range(6)]
    async with engines.engine(mailbox_bytes=1 << 16, num_blocks_override=8000, max_num_batched_tokens=150_000) as engine:
        sent: list[RequestOutputCollector] = []

        async def ask(question: Asked) -> list[int]:
            collector = await engine.add_request(None, *question)
            sent.append(collector)
            return await tokens_left(collector)

        core = pid_of(engine, CORE)
        os.kill(core, signal.SIGSTOP)
        answers = [asyncio.ensure_future(ask(question)) for question in asked]
        await until(lambda: bool(sent) and engine.num_unfinished_requests == len(asked))
        os.kill(core, signal.SIGKILL)
        assert len(sent) < len(asked)
        assert await asyncio.gather(*answers) == [tokens_of(*question) for question in asked]


@DOWN
async def test_questions_meanwhile_are_answered(engines: FaultyEngines, victim: str) -> None:
    """A question that was under way when the core died, too."""
    async with engines.engine(held_back(victim)) as engine:
        asked = mixed(2)
        collectors = await begun(engine, asked)
        pid = pid_of(engine, victim)
        os.kill(pid, signal.SIGSTOP)
        questions = [asyncio.ensure_future(engine.describe())]
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        await engines.somebody_waits()
        questions.append(asyncio.ensure_future(engine.describe()))
        reset = asyncio.ensure_future(engine.reset_prefix_cache(reset_running_requests=True))
        await asyncio.sleep(0)
        engines.go_on()
        await reset
        assert [(await question).num_blocks for question in questions] == [(await engine.describe()).num_blocks] * 2
        for question, collector in zip(asked, collectors, strict=True):
            assert await tokens_left(collector) == tokens_of(*question)


@DOWN
async def test_whoever_leaves_meanwhile_has_left(engines: FaultyEngines, victim: str) -> None:
    """By an abort, by closing, and by cancelling a request that was not sent yet."""
    async with engines.engine(held_back(victim)) as engine:
        endless: Asked = (prompt_of(1), greedy(50_000))
        aborted, closed, stays = await begun(engine, [endless, endless, (prompt_of(2), greedy())])
        os.kill(pid_of(engine, victim), signal.SIGKILL)
        await engines.somebody_waits()
        adding = asyncio.ensure_future(anext(engine.generate(*endless)))
        late = asyncio.ensure_future(engine.add_request("late", *endless))
        await until(lambda: engine.num_unfinished_requests == 5)
        await engine.abort([aborted.request_id, "late"])
        assert (await aborted.get()).outputs[0].finish_reason == "abort"
        closed.close()
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert engine.num_unfinished_requests == 1
        engines.go_on()
        assert (await (await late).get()).outputs[0].finish_reason == "abort"
        assert await tokens_left(stays) == tokens_of(prompt_of(2), greedy())
        description = await engine.describe()
        assert (description.running, description.waiting) == (0, 0)
        assert engine.stats.finished["error"] == 0


@pytest.mark.parametrize(
    ("victim", "how"),
    [
        (WORKER, "shut down"),
        (CORE, "killed"),
        pytest.param(WORKER, "killed", marks=pytest.mark.long),
        pytest.param(CORE, "shut down", marks=pytest.mark.long),
    ],
)
async def test_an_engine_ends_while_a_process_is_down(engines: FaultyEngines, victim: str, how: str) -> None:
    async with engines.engine(held_back(victim)) as engine:
        (collector,) = await begun(engine, [(prompt_of(1), greedy(50_000))])
        os.kill(pid_of(engine, victim), signal.SIGKILL)
        await engines.somebody_waits()
        waits = asyncio.ensure_future(engine.add_request(None, prompt_of(2), greedy()))
        asks = asyncio.ensure_future(engine.describe())
        await until(lambda: engine.num_unfinished_requests == 2)
        with all_end([process.pid for process in engine.process_table()[1:]]):
            if how == "killed":
                engine.kill()
                assert await error_of(collector)
            await engine.shutdown()
        for outcome in await asyncio.gather(waits, asks, return_exceptions=True):
            assert isinstance(outcome, EngineDeadError | RequestOutputCollector) or victim == WORKER
        assert engine.num_unfinished_requests == 0


@DOWN
async def test_without_restarts_the_first_death_is_the_end(engines: FaultyEngines, victim: str) -> None:
    async with engines.engine(max_restarts=0) as engine:
        collectors = await begun(engine, [(prompt_of(number), seeded(number, 50_000)) for number in range(3)])
        pid = pid_of(engine, victim)
        os.kill(pid, signal.SIGKILL)
        for collector in collectors:
            error = await error_of(collector)
            assert str(error) == f"{victim} (pid {pid}): ProcessDied: killed by signal 9"
        await engine.wait_ended()
        with pytest.raises(EngineDeadError, match=rf"{victim} .*killed by signal 9"):
            await engine.check_health()


@DOWN
@pytest.mark.parametrize("restarts", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_an_engine_whose_process_cannot_be_replaced_gives_up(engines: FaultyEngines, victim: str, restarts: int) -> None:
    """All are told what it died of at last, also those that came meanwhile."""
    leaves = Fault(do="exit", value=3, actor=victim, at=0, first_epoch=2, times=ALWAYS)
    async with engines.engine(leaves, max_restarts=restarts) as engine:
        collectors = await begun(engine, [(prompt_of(number), seeded(number, 50_000)) for number in range(3)])
        os.kill(pid_of(engine, victim), signal.SIGKILL)
        meanwhile = asyncio.ensure_future(anext(engine.generate(prompt_of(4), greedy())))
        errors = [await error_of(collector) for collector in collectors]
        with pytest.raises(EngineDeadError) as caught:
            await meanwhile
        for error in (*errors, caught.value):
            assert str(error).startswith(f"{victim} (pid ")
            assert "ProcessDied: exited with code 3" in str(error)
        assert len(engines.script.strikes()) == restarts
        with pytest.raises(EngineDeadError, match="exited with code 3"):
            await engine.add_request(None, prompt_of(5), greedy())


@pytest.mark.long
async def test_a_finished_step_makes_good_for_the_deaths_before(engines: FaultyEngines) -> None:
    """Four deaths, two of them without a finished step, and never more than two in a row."""
    leaves = [Fault(do="exit", value=3, at=0, first_epoch=epoch, last_epoch=epoch) for epoch in (2, 4)]
    async with engines.engine(*leaves) as engine:
        with FaultDriver(engine, [Blow(10, (WORKER,)), Blow(10, (WORKER,))]) as driver:
            await answer_all(engine, mixed(4, 3 * LONG), driver)
            assert not driver.left
        assert [strike.epoch for strike in engines.script.strikes()] == [2, 4]
