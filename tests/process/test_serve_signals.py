"""How `ringpost serve` ends when it is told to: what runs may finish, nobody is left hanging, nothing is left behind."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from api_client import COMPLETIONS, Client
from process_tree import actor_pids, all_end
from programs import COMMAND, LIMIT
from raw_streams import ENDLESS, begun_streams
from served_app import connection, post_bytes
from servers import ServerProcess, running_server
from tiny_checkpoint import write_tiny_llama

QUESTION = {"prompt": "ab", "max_tokens": 3}
SHORT: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True}

on_one_loop = pytest.mark.asyncio(loop_factories=["asyncio"])  # of the client
on_both_loops = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])  # of the server


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=100_000)


@contextmanager
def serving(model: Path, loop: str, seconds: int, *arguments: str) -> Iterator[ServerProcess]:
    """A server whose requests get so many seconds to finish; at the end of the block it has gone, and its actors with it."""
    options = ("--loop", loop, "--shutdown-timeout", str(seconds), *arguments)
    with running_server("--model", str(model), "--num-threads", "1", *options) as server:
        with all_end([server.process.pid, *actor_pids(server.process.pid).values()]):
            yield server
        assert "Traceback" not in server.stderr()


async def until_it_refuses(client: Client) -> None:
    """Wait until the server has noticed its signal."""
    while (await client.post(COMPLETIONS, b"{}"))[0] != 503:
        pass


@on_one_loop
@on_both_loops
async def test_what_runs_may_finish(no_leaks: None, tiny: Path, loop: str) -> None:
    with serving(tiny, loop, 100) as server:
        request = post_bytes(COMPLETIONS, QUESTION, "Expect: 100-continue")
        head, _, body = request.partition(b"\r\n\r\n")
        async with Client(server.url) as client, begun_streams(client, **SHORT) as streams, connection(server.url) as late:
            reader, writer = late
            writer.write(head + b"\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")  # its handler runs, and waits for the body

            server.process.send_signal(signal.SIGTERM)
            await until_it_refuses(client)
            status, content = await client.post(COMPLETIONS, QUESTION)
            assert (status, json.loads(content)["error"]["code"]) == (503, "shutting_down")
            assert server.health() == 503

            writer.write(body)
            assert b" 200 OK\r\n" in await reader.readuntil(b"\r\n")
            for stream in streams:
                *_, last = await stream.events()
                assert last["choices"][0]["finish_reason"] == "length"
        assert await asyncio.to_thread(server.wait) == 0
        assert "4 requests have 100 s to finish" in server.stderr()


@on_one_loop
@pytest.mark.parametrize(("loop", "seconds"), [("asyncio", 0), ("uvloop", 1)])
async def test_what_runs_too_long_is_told_so(no_leaks: None, tiny: Path, loop: str, seconds: int) -> None:
    with serving(tiny, loop, seconds) as server:
        async with Client(server.url) as client, begun_streams(client, **ENDLESS) as streams, asyncio.TaskGroup() as tasks:
            whole = tasks.create_task(client.post(COMPLETIONS, {"prompt": "ab"} | ENDLESS))
            await client.until(lambda scrape: scrape.load[0] == 4)
            server.process.send_signal(signal.SIGTERM)
            for stream in streams:
                *_, last = await stream.events()
                assert last["error"]["code"] == "shutting_down"
        status, content = whole.result()
        assert (status, json.loads(content)["error"]["code"]) == (503, "shutting_down")
        assert await asyncio.to_thread(server.wait) == 0


@on_one_loop
@pytest.mark.parametrize(("loop", "stuck"), [("uvloop", True), ("asyncio", False)])
async def test_a_second_signal_waits_for_nobody(no_leaks: None, tiny: Path, loop: str, stuck: bool) -> None:
    """Not for requests, and not for a process that does not stop."""
    with serving(tiny, loop, 1000 * LIMIT) as server:
        async with Client(server.url) as client, begun_streams(client, **ENDLESS) as streams:
            if stuck:
                os.kill(actor_pids(server.process.pid)["worker0.0"], signal.SIGSTOP)
            server.process.send_signal(signal.SIGINT)
            await until_it_refuses(client)
            server.process.send_signal(signal.SIGINT)
            for stream in streams:
                *_, last = await stream.events()
                assert "shut down" in last["error"]["message"]
        assert await asyncio.to_thread(server.wait) == 128 + signal.SIGINT


@on_one_loop
async def test_a_second_signal_when_only_a_process_is_waited_for(no_leaks: None, tiny: Path) -> None:
    with serving(tiny, "uvloop", 1000 * LIMIT) as server:
        os.kill(actor_pids(server.process.pid)["worker0.0"], signal.SIGSTOP)
        async with Client(server.url) as client:
            server.process.send_signal(signal.SIGTERM)
            await until_it_refuses(client)
            server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait) == 128 + signal.SIGTERM


@on_one_loop
@pytest.mark.parametrize(("loop", "number"), [("uvloop", signal.SIGINT), ("asyncio", signal.SIGTERM)])
async def test_a_signal_to_all_processes_at_once(no_leaks: None, tiny: Path, loop: str, number: int) -> None:
    """As from a system that shuts down, in the worst of orders: still the engine goes on until what runs has finished."""
    with serving(tiny, loop, 100) as server:
        async with Client(server.url) as client, begun_streams(client, **SHORT) as streams:
            for pid in (*actor_pids(server.process.pid).values(), server.process.pid):
                os.kill(pid, number)
            for stream in streams:
                *_, last = await stream.events()
                assert last["choices"][0]["finish_reason"] == "length"
        assert await asyncio.to_thread(server.wait) == 0


@on_one_loop
async def test_an_engine_that_dies_while_requests_finish(no_leaks: None, tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, "uvloop", 100, "--max-restarts", "0", "--postmortem-dir", str(tmp_path)) as server:
        worker = actor_pids(server.process.pid)["worker0.0"]
        async with Client(server.url) as client, begun_streams(client, **ENDLESS) as streams:
            server.process.send_signal(signal.SIGTERM)
            await until_it_refuses(client)
            os.kill(worker, signal.SIGKILL)
            for stream in streams:
                *_, last = await stream.events()
                assert f"worker0.0 (pid {worker})" in last["error"]["message"]
        assert await asyncio.to_thread(server.wait) == 1


def test_nothing_runs(no_leaks: None, tiny: Path) -> None:
    with serving(tiny, "asyncio", 5) as server:
        assert server.stop() == 0
        assert server.stderr() == ""


@pytest.mark.parametrize(("loop", "number"), [("uvloop", signal.SIGTERM), ("asyncio", signal.SIGINT)])
def test_it_has_not_even_begun(no_leaks: None, tiny: Path, loop: str, number: int) -> None:
    command = [COMMAND, "serve", "--model", str(tiny), "--port", "0", "--loop", loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while len(actors := actor_pids(process.pid)) < 2:
            assert process.poll() is None
        with all_end(list(actors.values())):
            process.send_signal(number)
            output, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, output, errors) == (128 + number, "", "")
