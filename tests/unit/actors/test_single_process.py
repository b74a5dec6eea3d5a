"""The whole engine in this process: requests, failures and the end, as with processes of its own."""

import asyncio
import gc
import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from mailboxes import parked
from tiny_checkpoint import write_tiny_llama

from ringpost import AsyncLLM, EngineDeadError, EngineStartError, RequestOutputKind, SamplingParams
from ringpost.actors import task_child
from ringpost.actors.boot import Boot, Control, Main
from ringpost.actors.child import Child
from ringpost.actors.config import engine_config, resolve_config
from ringpost.actors.logs import logger
from ringpost.actors.supervisor import Supervisor
from ringpost.model_runner.runner import ModelRunner
from ringpost.sched.scheduler import Scheduler

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_leaks")]

ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True, seed=1)


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the engine logs, from warnings on."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    listener = Listener(logging.WARNING)
    logger.addHandler(listener)
    yield lines
    logger.removeHandler(listener)


def engine_of(model: str, **options: Any) -> AsyncLLM:
    return AsyncLLM.from_engine_args(model=model, single_process=True, num_threads=1, **options)


async def tokens_of(engine: AsyncLLM, prompt: str, count: int = 20) -> list[int]:
    params = SamplingParams(max_tokens=count, seed=5, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
    (output,) = [output async for output in engine.generate(prompt, params)]
    return list(output.outputs[0].token_ids)


def others() -> set[asyncio.Task[Any]]:
    """Tasks of this loop besides the test's."""
    return asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task is not None}


def wait_for_ever_instead_of(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors of this kind never become ready."""
    real = task_child._main_of

    async def wait_for_ever(boot: Boot, control: Control) -> None:
        await asyncio.Event().wait()

    def main_of(wanted: str) -> Main:
        return wait_for_ever if wanted == kind else real(wanted)

    monkeypatch.setattr(task_child, "_main_of", main_of)


async def test_requests_are_answered_side_by_side(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        alone = [await tokens_of(engine, prompt) for prompt in ("ab", "the inner", "x")]
        assert [len(tokens) for tokens in alone] == [20] * 3
        async with asyncio.TaskGroup() as tasks:
            together = [tasks.create_task(tokens_of(engine, prompt)) for prompt in ("ab", "the inner", "x")]
        assert [task.result() for task in together] == alone
        assert (await engine.describe()).running == 0
        await engine.check_health()


async def test_everything_is_in_this_process_and_no_ring_is_made(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        table = {process.actor: process.pid for process in engine.process_table()}
        assert table == dict.fromkeys(("frontend0", "core0", "worker0.0"), os.getpid())
        segments = {name.partition("[")[0] for name in descriptors() if "memfd:ringpost:" in name}
        assert segments == {"/memfd:ringpost:status"}


def descriptors() -> list[str]:
    """What this process's descriptors lead to."""
    paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [os.readlink(path) for path in paths if os.path.lexists(path)]  # the one that listed the folder is closed


async def test_others_have_their_turn_while_it_computes(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        seen = 0
        async for _ in engine.generate("ab", SamplingParams(max_tokens=30, ignore_eos=True, seed=1)):
            assert turns > seen
            seen = turns
        counting.cancel()


async def test_an_aborted_request_frees_what_it_holds(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        reason = None
        async for output in engine.generate("ab", ENDLESS, "mine"):
            if reason is None and not output.finished:
                await engine.abort("mine")
            reason = output.outputs[0].finish_reason
        assert reason == "abort"
        async for _ in engine.generate("ab", ENDLESS):
            break
        while (description := await engine.describe()).running:
            await asyncio.sleep(0)
        assert description.free_blocks == description.num_blocks
        assert len(await tokens_of(engine, "ab")) == 20


async def test_a_worker_that_raises_fails_every_request_with_its_reason(
    tiny: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(tiny, max_restarts=0)
    await engine.start()
    waiting = [asyncio.create_task(tokens_of(engine, "ab", 400)) for _ in range(3)]
    await tokens_of(engine, "ab")

    def fail(*_: object) -> NoReturn:
        raise ZeroDivisionError("by a test")

    monkeypatch.setattr(ModelRunner, "execute", fail)
    reason = rf"worker0\.0 \(pid {os.getpid()}\): ZeroDivisionError: by a test"
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, EngineDeadError)
        assert re.search(reason, str(outcome))
    with pytest.raises(EngineDeadError, match=reason):
        await engine.check_health()
    assert any("the engine died" in line and "in fail" in line for line in said), "its traceback is told"
    await engine.shutdown()
    assert not others()


async def test_a_core_that_raises_is_named(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine_of(tiny, max_restarts=0) as engine:

        def fail(*_: object) -> NoReturn:
            raise RuntimeError("no plan")

        monkeypatch.setattr(Scheduler, "schedule", fail)
        with pytest.raises(EngineDeadError, match=r"core0 \(pid \d+\): RuntimeError: no plan"):
            await tokens_of(engine, "ab")


async def test_a_worker_that_cannot_start_fails_the_start_with_its_reason(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", num_hidden_layers=3)
    config = model / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 5'))
    engine = engine_of(str(model))
    with pytest.raises(EngineStartError, match=r"worker0\.0 \(pid \d+\): WeightError: .*layers\.3"):
        await engine.start()
    await engine.shutdown()
    assert not others()


async def test_an_import_that_fails_is_the_reason(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = task_child._main_of

    def main_of(kind: str) -> Main:
        if kind == "worker":
            raise ImportError("a broken installation")
        return real(kind)

    monkeypatch.setattr(task_child, "_main_of", main_of)
    engine = engine_of(tiny)
    with pytest.raises(EngineStartError, match=r"worker0\.0 \(pid \d+\): ImportError: a broken installation"):
        await engine.start()
    await engine.shutdown()


async def test_an_actor_that_never_gets_ready_is_named(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_ever_instead_of("worker", monkeypatch)
    engine = engine_of(tiny, startup_timeout=0.2)
    with pytest.raises(EngineStartError, match=r"worker0\.0 .*not ready after startup_timeout=0\.2 s, still loading the model"):
        await engine.start()
    await engine.shutdown()
    assert not others()


async def test_shutdown_during_the_start(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_ever_instead_of("worker", monkeypatch)
    engine = engine_of(tiny)
    starting = asyncio.create_task(engine.start())
    while engine._supervisor is None:
        await asyncio.sleep(0)
    await engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await starting
    assert not others()


async def test_shutdown_ends_live_requests_and_every_task(tiny: str, said: list[str]) -> None:
    engine = engine_of(tiny)
    await engine.start()
    outputs = engine.generate("ab", ENDLESS)
    assert not (await anext(outputs)).finished
    await engine.shutdown()
    assert (await anext(outputs)).outputs[0].finish_reason == "abort"
    await outputs.aclose()
    assert not others()
    assert not said
    with pytest.raises(EngineDeadError, match="shut down"):
        await tokens_of(engine, "ab")


async def test_an_actor_that_does_not_stop_is_cancelled_and_named(
    tiny: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = engine_config(model=tiny, single_process=True, num_threads=1, shutdown_timeout=0.2)
    monkeypatch.setattr(Child, "tell", lambda *_: True)
    async with Supervisor(resolve_config(options)) as engine:
        assert await engine.wait_ready() is None
        assert {task.get_name() for task in others()} == {"core0", "worker0.0"}
    assert said == ["core0 did not stop in 0.2 s and is killed", "worker0.0 is killed before its turn to stop"]
    assert not others()


async def test_leaving_while_it_stops_still_ends_everything(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = engine_config(model=tiny, single_process=True, num_threads=1, shutdown_timeout=1e6)
    monkeypatch.setattr(Child, "tell", lambda *_: True)
    leaves = asyncio.Event()

    async def run() -> None:
        async with Supervisor(resolve_config(options)) as engine:
            assert await engine.wait_ready() is None
            leaves.set()

    task = asyncio.create_task(run())
    await leaves.wait()
    await parked(task)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not others()


async def test_killed_actors_are_told_as_dead(tiny: str) -> None:
    async with engine_of(tiny) as engine:
        waiting = asyncio.create_task(tokens_of(engine, "ab", 400))
        await tokens_of(engine, "ab")
        engine.kill()
        with pytest.raises(EngineDeadError, match=r"core0 \(pid \d+\): ProcessDied: its task was cancelled"):
            await waiting
    assert not others()


async def test_many_engines_in_a_row_leave_this_process_as_it_was(tiny: str) -> None:
    handler, frozen = signal.getsignal(signal.SIGTTOU), gc.get_freeze_count()
    answers = []
    for _ in range(8):
        async with engine_of(tiny) as engine:
            answers.append(await tokens_of(engine, "ab"))
        assert not others()
    assert answers == answers[:1] * 8
    assert signal.getsignal(signal.SIGTTOU) == handler
    assert gc.get_freeze_count() <= frozen  # those frozen before may die meanwhile


async def test_two_engines_at_once(tiny: str) -> None:
    async with engine_of(tiny) as first, engine_of(tiny) as second, asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(tokens_of(engine, "ab")) for engine in (first, second)]
    assert answers[0].result() == answers[1].result()
