"""What the supervisor promises about starts that hang and stops that are not obeyed."""

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from faults import broken_import, hanging_import
from msgspec.structs import replace
from tiny_checkpoint import write_tiny_llama

from ringpost import AsyncLLM, EngineConfig, EngineStartError
from ringpost.actors import supervisor
from ringpost.actors.child import Child
from ringpost.actors.config import engine_config, resolve_config
from ringpost.actors.logs import logger
from ringpost.actors.process import ActorProcess
from ringpost.actors.supervisor import Observer, Supervisor
from ringpost.ipc.messages.control import ToActor

on_one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])
HOURS = 1e6  # longer than any test runs


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = tmp_path_factory.mktemp("engine")
    model, postmortems = write_tiny_llama(folder / "tiny"), folder / "postmortem"
    options = {"num_threads": 1, "shutdown_timeout": HOURS, "postmortem_dir": str(postmortems)}
    return resolve_config(engine_config(model=str(model), **options))


def with_runtime(config: EngineConfig, **fields: float) -> EngineConfig:
    return replace(config, runtime=replace(config.runtime, **fields))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The engine's warnings, whatever other tests have done to its log."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    listener = Listener(logging.WARNING)
    logger.addHandler(listener)
    yield said
    logger.removeHandler(listener)


@on_one_loop
async def test_processes_that_never_say_hello(
    no_leaks: None, config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not take the whole time that loading may take to notice, and the last line tells what they wait for."""
    hanging_import("msgspec", tmp_path, monkeypatch)
    monkeypatch.setattr(supervisor, "HELLO_TIMEOUT", 1.0)
    engine = AsyncLLM(with_runtime(config, startup_timeout=HOURS))
    with pytest.raises(EngineStartError) as caught:
        await engine.start()
    await engine.shutdown()
    reason = str(caught.value)
    assert reason.startswith("worker0.0 (pid ")
    assert reason.endswith("TimeoutError: no Hello from its process after 1 s; its last line: waits for a disk")


@on_one_loop
async def test_a_process_that_never_gets_ready(
    no_leaks: None, config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that hangs is named, not the one that waits for it."""
    hanging_import("torch", tmp_path, monkeypatch)
    engine = AsyncLLM(with_runtime(config, startup_timeout=5))
    with pytest.raises(EngineStartError) as caught:
        await engine.start()
    await engine.shutdown()
    reason = str(caught.value)
    assert reason.startswith("worker0.0 (pid ")
    late = "TimeoutError: not ready after startup_timeout=5 s, still loading the model; its last line: waits for a disk"
    assert reason.endswith(late)


@on_one_loop
async def test_a_library_that_cannot_be_imported(
    no_leaks: None, config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_import("torch", tmp_path, monkeypatch)
    engine = AsyncLLM(config)
    with pytest.raises(EngineStartError, match=r"worker0\.0 \(pid \d+\): RuntimeError: a broken installation$"):
        await engine.start()
    await engine.shutdown()


@on_one_loop
async def test_a_process_that_the_system_refuses(no_leaks: None, config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = ActorProcess.start

    def start(process: ActorProcess) -> None:
        if process.name == "worker0.0":
            raise BlockingIOError("Resource temporarily unavailable")
        begin(process)

    monkeypatch.setattr(ActorProcess, "start", start)
    engine = AsyncLLM(config)
    with pytest.raises(EngineStartError, match=r"^worker0\.0 cannot be started: Resource temporarily unavailable$"):
        await engine.start()
    await engine.shutdown()


@on_one_loop
async def test_the_core_stops_first_and_tells_its_workers(
    no_leaks: None, config: EngineConfig, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Child] = []
    early: list[str] = []  # those asked while others whom they serve still ran
    ended: dict[str, int | None] = {}
    tell, reap = Child.tell, ActorProcess.reap

    def ask_the_core_only(child: Child, message: ToActor) -> bool:
        early.extend(child.actor for other in asked if other.running)
        asked.append(child)
        return child.boot.kind != "engine_core" or tell(child, message)

    def note_its_end(process: ActorProcess, timeout: float | None) -> bool:
        done = reap(process, timeout)
        ended[process.name] = process.exitcode
        return done

    monkeypatch.setattr(Child, "tell", ask_the_core_only)
    monkeypatch.setattr(ActorProcess, "reap", note_its_end)
    async with Supervisor(config) as engine:
        assert await engine.wait_ready() is None
    assert asked[0].actor == "core0"
    assert not early
    assert ended == {"core0": 0, "worker0.0": 0}
    assert not warnings


@on_one_loop
@pytest.mark.parametrize(
    ("stuck", "killed"),
    [
        ("worker0.0", ["worker0.0 did not stop in 0.5 s and is killed"]),
        ("core0", ["core0 did not stop in 0.5 s and is killed", "worker0.0 is killed before its turn to stop"]),
    ],
)
async def test_a_process_that_does_not_stop_is_killed_and_named(
    no_leaks: None, config: EngineConfig, warnings: list[str], stuck: str, killed: list[str]
) -> None:
    async with Supervisor(with_runtime(config, shutdown_timeout=0.5)) as engine:
        assert await engine.wait_ready() is None
        pids = {process.actor: process.pid for process in engine.process_table()}
        os.kill(pids[stuck], signal.SIGSTOP)
    assert warnings == killed


@on_one_loop
async def test_nobody_waits_for_the_work_of_a_dead_engine(
    no_leaks: None, config: EngineConfig, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long an orderly end may take."""
    monkeypatch.setattr(supervisor, "DEAD_GRACE", 0.1)
    async with Supervisor(with_runtime(config, max_restarts=0)) as engine:
        assert await engine.wait_ready() is None
        pids = {process.actor: process.pid for process in engine.process_table()}
        os.kill(pids["worker0.0"], signal.SIGSTOP)
        os.kill(pids["core0"], signal.SIGKILL)
        failure = await engine.run(Mock(spec=Observer))
    assert (failure.actor, failure.message) == ("core0", "killed by signal 9")
    assert warnings[0].startswith(f"core0 (pid {pids['core0']}): ProcessDied: killed by signal 9; it is not replaced")
    assert warnings[1].startswith(f"the post-mortem of core0 is in {config.runtime.postmortem_dir}/")
    assert warnings[2:] == ["worker0.0 did not stop in 0.1 s and is killed"]


@on_one_loop
async def test_leaving_while_it_stops_still_ends_everything(no_leaks: None, config: EngineConfig) -> None:
    async def run() -> None:
        async with Supervisor(config) as engine:
            assert await engine.wait_ready() is None
            os.kill(engine.process_table()[1].pid, signal.SIGSTOP)
            leaves.set()

    leaves = asyncio.Event()
    task = asyncio.ensure_future(run())
    await leaves.wait()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
