"""A handler that raises in a running engine: whoever waits learns which actor failed, and on what. And questions unanswered."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deadly_scheduler import RaisesAtResult, path_of
from faults import importable_helpers

from ringpost import AsyncLLM, EngineDeadError, RequestOutputCollector, SamplingParams
from ringpost.actors import config
from ringpost.actors.errors import NoAnswerError
from ringpost.ipc.board import BoardReader
from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.status import ActorStatus

pytestmark = pytest.mark.asyncio

ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True, seed=1)


@pytest.fixture(autouse=True)
def postmortems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written about those that die goes with the test."""
    monkeypatch.setattr(config, "cache_root", lambda: tmp_path)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def pid_of(engine: AsyncLLM, kind: str) -> int:
    (pid,) = (process.pid for process in engine.process_table() if process.kind == kind)
    return pid


async def last_of(collector: RequestOutputCollector) -> None:
    while not (await collector.get()).finished:
        pass


async def test_a_core_whose_handler_raises_ends_with_its_reason(
    no_leaks: None, tiny: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable_helpers(monkeypatch)
    options = {"scheduler_cls": path_of(RaisesAtResult), "max_restarts": 0}
    async with AsyncLLM.from_engine_args(model=tiny, **options) as engine:
        pid = pid_of(engine, "engine_core")
        collector = await engine.add_request(None, "ab", ENDLESS)
        with pytest.raises(EngineDeadError, match=re.escape(f"core0 (pid {pid}): RuntimeError: no hands")):
            await last_of(collector)
    assert "in the handler of StepResult" in caplog.text


async def test_a_frontend_whose_handler_raises_ends_with_its_reason(
    no_leaks: None, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(deltas: list[TokenDelta]) -> list[int]:
        raise RuntimeError("no hands")

    async with AsyncLLM.from_engine_args(model=tiny) as engine:
        monkeypatch.setattr(engine._outputs, "process", broken)
        with pytest.raises(EngineDeadError, match=re.escape(f"frontend0 (pid {os.getpid()}): RuntimeError: no hands")):
            await anext(engine.generate("ab", ENDLESS))


async def test_a_question_to_a_core_that_stands_still_has_a_deadline(no_leaks: None, tiny: str) -> None:
    async with AsyncLLM.from_engine_args(model=tiny, hang_timeout=0.2) as engine:
        with (
            stopped(pid_of(engine, "engine_core")),
            pytest.raises(NoAnswerError, match=r"^core0 has not answered DescribeEngine in 0\.2 s$"),
        ):
            await engine.describe()
        output = await anext(engine.generate("ab", SamplingParams(max_tokens=1, seed=1)))
        assert output.finished


async def test_with_debug_actors_whom_the_frontend_asks_can_be_seen(
    no_leaks: None, tiny: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncLLM.from_engine_args(model=tiny, debug_actors=True) as engine:
        assert engine._supervisor is not None
        board = BoardReader(engine._supervisor.topology.statuses[0], ActorStatus)

        def asks() -> str:
            status = board.read()
            assert status is not None
            return status.asks

        assert asks() == ""
        with stopped(pid_of(engine, "engine_core")):
            question = asyncio.create_task(engine.describe())
            for _ in range(5):
                await asyncio.sleep(0)
            assert asks() == "core0"
        assert (await question).running == 0
        assert asks() == ""
        output = await anext(engine.generate("ab", SamplingParams(max_tokens=1, seed=1)))
        assert output.finished
        board.close()
    assert "circle" not in caplog.text
