"""Processes that die and are not replaced: nobody is left waiting, and nothing is left behind."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faults import FAILS, LEAVES, broken_import, obedient_actors
from process_tree import actor_pids, all_end
from programs import LIMIT
from tiny_checkpoint import write_tiny_llama

from ringpost import AsyncLLM, EngineDeadError, EngineError, EngineStartError, RequestOutputCollector, SamplingParams
from ringpost.actors import config
from ringpost.actors.engine_look import look

on_one_loop = pytest.mark.asyncio(loop_factories=["uvloop"])
ENDLESS = SamplingParams(max_tokens=400, ignore_eos=True, seed=1)


@pytest.fixture(autouse=True)
def postmortems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written about those that die goes with the test."""
    monkeypatch.setattr(config, "cache_root", lambda: tmp_path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=1_000_000))


def pid_of(engine: AsyncLLM, actor: str) -> int:
    return next(process.pid for process in engine.process_table() if process.actor == actor)


async def error_of(collector: RequestOutputCollector) -> Exception:
    """What a request ends by, after the outputs that came before."""
    try:
        while True:
            await collector.get()
    except EngineError as error:
        return error


@on_one_loop
@pytest.mark.parametrize("victim", ["engine_core", "worker"])
async def test_a_killed_process_fails_every_request_with_its_name(no_leaks: None, tiny: str, victim: str) -> None:
    async with AsyncLLM.from_engine_args(model=tiny, max_restarts=0) as engine:
        (process,) = [process for process in engine.process_table() if process.kind == victim]
        started = [asyncio.Event() for _ in range(3)]

        async def consume(mark: asyncio.Event) -> None:
            async for _ in engine.generate("ab", ENDLESS):
                mark.set()

        consumers = [asyncio.ensure_future(consume(mark)) for mark in started]
        for mark in started:
            await mark.wait()
        os.kill(process.pid, signal.SIGKILL)
        for outcome in await asyncio.gather(*consumers, return_exceptions=True):
            assert isinstance(outcome, EngineDeadError)
            assert f"{process.actor} (pid {process.pid})" in str(outcome)
            assert "signal 9" in str(outcome)
        assert engine.errored
        assert not engine.is_running
        with pytest.raises(EngineDeadError, match=process.actor):
            await engine.check_health()
        with pytest.raises(EngineDeadError, match=process.actor):
            await anext(engine.generate("ab"))


@on_one_loop
@pytest.mark.parametrize(
    ("victim", "fault", "told"),
    [
        ("core0", FAILS, "Fault: told by a signal"),
        ("worker0.0", FAILS, "Fault: told by a signal"),
        ("worker0.0", LEAVES, "ProcessDied: exited with code 3"),
    ],
)
async def test_a_process_that_ends_by_itself_is_told_with_its_reason(
    no_leaks: None, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str, fault: int, told: str
) -> None:
    obedient_actors(tmp_path, monkeypatch)
    async with AsyncLLM.from_engine_args(model=tiny, num_threads=1, loop="asyncio", max_restarts=0) as engine:
        collector = await engine.add_request(None, "ab", ENDLESS)
        await collector.get()
        pid = pid_of(engine, victim)
        os.kill(pid, fault)
        error = await error_of(collector)
        assert isinstance(error, EngineDeadError)
        assert str(error) == f"{victim} (pid {pid}): {told}"


@on_one_loop
@pytest.mark.parametrize("victim", ["core0", "worker0.0"])
async def test_a_process_dies_while_nobody_asks_anything(no_leaks: None, tiny: str, victim: str) -> None:
    async with AsyncLLM.from_engine_args(model=tiny, num_threads=1, max_restarts=0) as engine:
        os.kill(pid_of(engine, victim), signal.SIGKILL)
        await engine.wait_ended()
        with pytest.raises(EngineDeadError, match=rf"{victim} .*killed by signal 9"):
            await engine.check_health()
        with pytest.raises(EngineDeadError, match=rf"{victim} .*killed by signal 9"):
            await engine.add_request(None, "ab")


@on_one_loop
@pytest.mark.parametrize("victim", ["core0", "worker0.0"])
async def test_a_process_dies_during_a_long_prefill(no_leaks: None, tiny: str, victim: str) -> None:
    """The worker computes, and nothing has come back yet."""
    prompt = [5] * 50_000
    options = {"num_threads": 1, "max_num_batched_tokens": 256, "max_restarts": 0}
    async with AsyncLLM.from_engine_args(model=tiny, **options) as engine:
        collector = await engine.add_request(None, prompt, ENDLESS)
        while (await engine.describe()).running == 0:
            pass
        os.kill(pid_of(engine, victim), signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=rf"{victim} .*killed by signal 9"):
            await collector.get()


@on_one_loop
async def test_the_core_dies_while_requests_wait_for_room_in_its_mailbox(no_leaks: None, tiny: str) -> None:
    """Those that were sent and those that were not learn the same."""
    prompt = [5] * 20_000
    async with AsyncLLM.from_engine_args(model=tiny, num_threads=1, mailbox_bytes=1 << 16, max_restarts=0) as engine:
        core = pid_of(engine, "core0")
        os.kill(core, signal.SIGSTOP)

        async def ask() -> None:
            collector = await engine.add_request(None, prompt, ENDLESS)
            sent.append(collector.request_id)
            await collector.get()

        sent: list[str] = []
        requests = [asyncio.ensure_future(ask()) for _ in range(8)]
        while engine.num_unfinished_requests < len(requests) or not sent:
            await asyncio.sleep(0)
        assert len(sent) < len(requests)
        os.kill(core, signal.SIGKILL)
        for outcome in await asyncio.gather(*requests, return_exceptions=True):
            assert isinstance(outcome, EngineDeadError)
            assert str(outcome) == f"core0 (pid {core}): ProcessDied: killed by signal 9"
        assert len(sent) < len(requests)


@on_one_loop
async def test_the_core_dies_while_a_prompt_is_tokenised(no_leaks: None, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncLLM.from_engine_args(model=tiny, num_threads=1, max_restarts=0) as engine:
        tokenise = engine._inputs.encode
        begun = asyncio.Event()

        async def tokenise_slowly(*arguments: Any) -> Any:
            tokens = await tokenise(*arguments)
            begun.set()
            await engine.wait_ended()
            return tokens

        monkeypatch.setattr(engine._inputs, "encode", tokenise_slowly)
        adding = asyncio.ensure_future(engine.add_request(None, "ab", ENDLESS))
        await begun.wait()
        os.kill(pid_of(engine, "core0"), signal.SIGKILL)
        collector = await adding
        with pytest.raises(EngineDeadError, match=r"core0 .*killed by signal 9"):
            await collector.get()


@pytest.mark.asyncio
async def test_a_worker_that_cannot_start_fails_the_start_with_its_reason(no_leaks: None, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", num_hidden_layers=3)
    config = model / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 5'))
    engine = AsyncLLM.from_engine_args(model=str(model))
    with pytest.raises(EngineStartError, match=r"worker0\.0 \(pid \d+\): WeightError: .*layers\.3"):
        await engine.start()
    with pytest.raises(EngineStartError):
        await anext(engine.generate("ab"))
    await engine.shutdown()


@pytest.mark.asyncio
async def test_a_process_that_dies_during_the_start_is_named(no_leaks: None, tiny: str) -> None:
    engine = AsyncLLM.from_engine_args(model=tiny)
    start = asyncio.ensure_future(engine.start())
    while not (children := _children(os.getpid())):
        await asyncio.sleep(0)
    os.kill(children[-1], signal.SIGKILL)
    with pytest.raises(EngineStartError, match="signal 9"):
        await start
    await engine.shutdown()


@pytest.mark.asyncio
async def test_shutdown_during_the_start(no_leaks: None, tiny: str) -> None:
    engine = AsyncLLM.from_engine_args(model=tiny)
    start = asyncio.ensure_future(engine.start())
    while not _children(os.getpid()):
        await asyncio.sleep(0)
    await engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await start


@pytest.mark.asyncio
async def test_shutdown_ends_what_runs(no_leaks: None, tiny: str) -> None:
    async with AsyncLLM.from_engine_args(model=tiny) as engine:
        collector = await engine.add_request("r", "ab", ENDLESS)
        first = await collector.get()
        assert not first.finished
    last = await collector.get()
    assert (last.finished, last.outputs[0].finish_reason) == (True, "abort")
    await engine.shutdown()
    with pytest.raises(EngineDeadError, match="shut down"):
        await engine.add_request("s", "ab")


PROGRAM = """
import asyncio, sys
from ringpost import AsyncLLM, SamplingParams
async def main():
    async with AsyncLLM.from_engine_args(model={model!r}) as engine:
        async for output in engine.generate("ab", SamplingParams(max_tokens=50, ignore_eos=True)):
            print("token", flush=True)
        print("idle", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["first process", "second process", "0.1 s", "0.5 s", "while it answers", "idle"])
def test_killing_the_program_leaves_no_process(no_leaks: None, tiny: str, moment: str) -> None:
    shared = set(os.listdir("/dev/shm"))
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(model=tiny)], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        if moment == "while it answers":
            program.stdout.readline()
        elif moment == "idle":
            while program.stdout.readline() != b"idle\n":
                assert program.poll() is None
        elif moment.endswith(" s"):
            threading.Event().wait(float(moment.removesuffix(" s")))
        else:
            while len(_children(program.pid)) < (1 if moment == "first process" else 2):
                assert program.poll() is None
        watched = [os.pidfd_open(pid) for pid in _children(program.pid)]
        program.kill()
        program.wait(LIMIT)
    for handle in watched:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(LIMIT * 1000), "a process outlives the one that started it"
        os.close(handle)
    assert set(os.listdir("/dev/shm")) == shared


LONG_STEP = """
import asyncio
from ringpost import AsyncLLM, SamplingParams
async def main():
    tokens = {tokens}
    options = dict(max_num_batched_tokens=tokens, num_blocks_override=tokens // 16 + 1, max_model_len=tokens + 2)
    async with AsyncLLM.from_engine_args(model={model!r}, num_threads=1, **options) as engine:
        async for _ in engine.generate([5] * tokens, SamplingParams(max_tokens=1)):
            pass
asyncio.run(main())
"""


def test_killing_the_program_ends_a_worker_inside_a_long_kernel(no_leaks: None, tiny: str) -> None:
    """Its step alone would take longer than anybody waits here for its end."""
    with subprocess.Popen([sys.executable, "-c", LONG_STEP.format(model=tiny, tokens=250_000)]) as program:
        while (worker := actor_pids(program.pid).get("worker0.0")) is None or not _holds_a_step(program.pid, worker):
            assert program.poll() is None
        begun = _cpu_seconds(worker)
        while _cpu_seconds(worker) < begun + 1:  # it has prepared its inputs
            assert program.poll() is None
        with all_end(list(actor_pids(program.pid).values())):
            program.kill()
            program.wait(LIMIT)


def _holds_a_step(program: int, worker: int) -> bool:
    statuses = [actor.status for engine in look([program]).engines for actor in engine.actors.values()]
    return any(status.pid == worker and status.message.startswith("StepPlan") for status in statuses)


def _cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    """Children of a process that run one of our modules, in the order of their start."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has just ended
            found += [int(child) for child in (task / "children").read_text().split()]
    return [child for child in sorted(found) if _is_actor(child)]


def _is_actor(pid: int) -> bool:
    try:
        return b"ringpost.actors." in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.asyncio
async def test_a_process_that_cannot_even_speak_is_quoted(
    no_leaks: None, tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its last line is the reason when it ends before it can send one."""
    broken_import("msgspec", tmp_path, monkeypatch)
    engine = AsyncLLM.from_engine_args(model=tiny)
    with pytest.raises(EngineStartError, match=r"exited with code 1; its last line: RuntimeError: a broken installation"):
        await engine.start()
    await engine.shutdown()
