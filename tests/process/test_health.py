"""Actors that stop without an end and are not replaced: /health names them and what they hold, and is well again later."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_client import COMPLETIONS, Client
from process_tree import actor_pids
from servers import ServerProcess, running_server
from tiny_checkpoint import write_tiny_llama

from ringpost import AsyncLLM, SamplingParams
from ringpost.actors.engine_look import look
from ringpost.actors.watch import EngineWatch

QUESTION = {"prompt": "ab", "max_tokens": 3}

on_one_loop = pytest.mark.asyncio(loop_factories=["asyncio"])  # of the client; the server has its own


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=100_000))


@pytest.fixture
def server(no_leaks: None, tiny: str) -> Iterator[ServerProcess]:
    with running_server("--model", tiny, "--num-threads", "1", "--hang-timeout", "1", "--max-restarts", "0") as server:
        yield server


def is_stopped(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while not is_stopped(pid):
        pass


def stop_in_a_step(server: ServerProcess, worker: int) -> None:
    """Stop the worker of a busy engine with a plan in hand."""
    while True:
        stop(worker)
        (engine,) = look([server.process.pid]).engines
        (status,) = [actor.status for actor in engine.actors.values() if actor.status.pid == worker]
        if status.message:
            return
        os.kill(worker, signal.SIGCONT)


async def unhealthy(client: Client) -> str:
    """The reason, once there is one; until then it is well."""
    while (error := await client.health()) is None:
        pass
    assert (error["type"], error["code"]) == ("service_unavailable_error", "engine_hung")
    return str(error["message"])


async def healthy(client: Client) -> None:
    while await client.health() is not None:
        pass


@pytest.mark.long
@on_one_loop
async def test_a_worker_that_stops_in_a_step(server: ServerProcess) -> None:
    worker = actor_pids(server.process.pid)["worker0.0"]
    body = {"prompt": "ab", "max_tokens": 1000, "ignore_eos": True}
    begun = asyncio.Event()
    async with Client(server.url) as client, asyncio.TaskGroup() as tasks:
        stream = tasks.create_task(client.stream(COMPLETIONS, body, lambda _: begun.set()))
        await begun.wait()
        stop_in_a_step(server, worker)
        reason = await unhealthy(client)
        assert re.fullmatch(rf"worker0\.0 \(pid {worker}\): holds StepPlan \d+ for \d+ s", reason)
        assert (await client.metrics()).load[:2] == (1, 0)
        os.kill(worker, signal.SIGCONT)
        await healthy(client)
        assert (await stream).first.finish_reason == "length"
        assert await client.health() is None
        assert "no progress: worker0.0" in server.stderr()


@on_one_loop
async def test_who_idles_may_be_stopped_and_who_leaves_a_message_may_not(server: ServerProcess) -> None:
    """Requests are still taken, and all are answered in the end."""
    actors = actor_pids(server.process.pid)
    core, worker = actors["core0"], actors["worker0.0"]
    async with Client(server.url) as client, asyncio.TaskGroup() as tasks:
        stop(worker)
        stop(core)
        answers = [tasks.create_task(client.ask(COMPLETIONS, QUESTION))]
        reason = await unhealthy(client)
        assert re.fullmatch(rf"core0 \(pid {core}\): has taken nothing from requests\[0,0\] for \d+ s", reason)
        assert (await client.metrics()).load == (0, 0, 0)  # as of its last step, without its help
        answers.append(tasks.create_task(client.ask(COMPLETIONS, QUESTION)))
        os.kill(core, signal.SIGCONT)
        await client.until(lambda scrape: scrape.load[0] == 2 or scrape.load[:2] == (1, 1))
        while not (reason := await unhealthy(client)).startswith("worker0.0"):
            pass
        assert re.fullmatch(rf"worker0\.0 \(pid {worker}\): has taken nothing from plans\[0\] for \d+ s", reason)
        os.kill(worker, signal.SIGCONT)
        for answer in answers:
            assert (await answer).completion_tokens == QUESTION["max_tokens"]
        await healthy(client)


@pytest.mark.long
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_program_that_blocks_its_loop_blames_nobody(no_leaks: None, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at once nor after a few more looks, although the worker did nothing meanwhile."""
    found: list[str | None] = []
    looked = asyncio.Event()
    look_once = EngineWatch.look

    def look(self: EngineWatch, now: float) -> None:
        look_once(self, now)
        found.append(self.hung)
        if len(found) == 8:
            looked.set()

    async with AsyncLLM.from_engine_args(model=tiny, num_threads=1, hang_timeout=1.0) as engine:
        (worker,) = [process.pid for process in engine.process_table() if process.kind == "worker"]
        answer = engine.generate("ab", SamplingParams(max_tokens=50_000, ignore_eos=True))
        await anext(answer)
        monkeypatch.setattr(EngineWatch, "look", look)
        os.kill(worker, signal.SIGSTOP)
        threading.Event().wait(3)
        os.kill(worker, signal.SIGCONT)
        await engine.check_health()
        while not looked.is_set():
            await anext(answer)
            await engine.check_health()
        await answer.aclose()
    assert found[:8] == [None] * 8
