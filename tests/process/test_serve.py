"""`ringpost serve` as a process: what it needs to start, what it does when a process dies, and what it keeps to itself."""

import asyncio
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from api_client import CHAT, COMPLETIONS, Client
from process_tree import actor_pids, all_end, command_line
from programs import COMMAND, LIMIT, run_ringpost
from servers import ServerProcess, running_server
from tiny_checkpoint import write_tiny_llama

KEY = "sk-a-key-of-no-use"
QUESTION = {"prompt": "ab", "max_tokens": 3}

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # of the client; the server has its own


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=100_000)


@contextmanager
def serving(model: Path, *arguments: str, **environment: str) -> Iterator[ServerProcess]:
    """A server on the tiny model, which one thread computes fastest."""
    with running_server("--model", str(model), "--num-threads", "1", *arguments, **environment) as server:
        yield server


def port_of(server: ServerProcess) -> int:
    port = urlsplit(server.url).port
    assert port is not None
    return port


def assert_one_line(code: int | None, errors: str, named: str) -> None:
    assert code == 2, errors
    (line,) = errors.splitlines()
    assert line.startswith("ringpost serve: ")
    assert named in line


def test_a_port_in_use(no_leaks: None, tiny: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        done = run_ringpost("serve", "--model", str(tiny), "--port", port)
    assert_one_line(done.returncode, done.stderr, f"port {port}")


@pytest.mark.parametrize("arguments", [("--model", "/no/such/model"), ("/no/such/model",)])
def test_a_model_that_is_not_there(no_leaks: None, arguments: tuple[str, ...]) -> None:
    done = run_ringpost("serve", "--port", "0", *arguments)
    assert_one_line(done.returncode, done.stderr, "/no/such/model")
    assert done.stdout == ""


def test_a_model_that_a_worker_cannot_load(no_leaks: None, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model")
    os.truncate(model / "model.safetensors", 1000)
    done = run_ringpost("serve", "--port", "0", "--model", str(model))
    assert_one_line(done.returncode, done.stderr, "model.safetensors")


def test_two_servers_begin_on_one_port(no_leaks: None, tiny: Path) -> None:
    """Neither listens when the other looks; still one lives, and the other says why it does not."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [COMMAND, "serve", "--model", str(tiny), "--num-threads", "1", "--port", port]
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        pipe = subprocess.PIPE
        processes = [stack.enter_context(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)) for _ in range(2)]
        first = next(as_completed([pool.submit(ended, process) for process in processes])).result()
        output, errors = first.communicate(timeout=LIMIT)
        assert output == ""
        assert_one_line(first.returncode, errors, f"port {port}")
        (other,) = [process for process in processes if process is not first]
        assert other.stdout is not None
        assert port in other.stdout.readline()
        with urlopen(f"http://127.0.0.1:{port}/health") as reply:
            assert reply.status == 200
        other.terminate()
        assert other.wait(LIMIT) == 0


def ended(process: "subprocess.Popen[str]") -> "subprocess.Popen[str]":
    process.wait(LIMIT)
    return process


@pytest.mark.asyncio(loop_factories=["asyncio"])
@pytest.mark.parametrize("victim", ["core0", "worker0.0"])
async def test_a_process_of_the_engine_dies(no_leaks: None, tiny: Path, victim: str) -> None:
    """Every client learns which one and how, and so does whoever started the server."""
    with serving(tiny) as server:
        actors = actor_pids(server.process.pid)
        named = f"{victim} (pid {actors[victim]})"
        async with Client(server.url) as client, long_answers(client) as answers:
            with all_end([server.process.pid, *actors.values()]):
                os.kill(actors[victim], signal.SIGKILL)
                for answer in answers.streams:
                    *_, error = await answer.rest()
                    assert error["error"]["code"] == "engine_dead"
                    assert named in error["error"]["message"]
                    assert "signal 9" in error["error"]["message"]
                status, content = await answers.whole
                assert status == 503
                assert named.encode() in content
                with pytest.raises(AssertionError, match="503|Cannot connect"):
                    await client.metrics()
        assert await asyncio.to_thread(server.wait) == 1
        last = server.stderr().splitlines()[-1]
        assert last.startswith(f"ringpost serve: {named}")
        assert "Traceback" not in server.stderr()
