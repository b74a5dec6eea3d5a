"""`ringpost serve` as a process: what it needs to start, what it does when a process dies, and what it keeps to itself."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from aiohttp import ClientConnectionError
from api_client import COMPLETIONS, Client
from process_tree import actor_pids, all_end, command_line
from programs import COMMAND, LIMIT, run_program, run_ringpost
from raw_streams import ENDLESS, begun_streams
from servers import ServerProcess, running_program, running_server
from tiny_checkpoint import write_tiny_llama

from ringpost.ipc.messages.config import ApiConfig

KEY = "sk-a-key-of-no-use"
QUESTION = {"prompt": "ab", "max_tokens": 3, "ignore_eos": True}

on_one_loop = pytest.mark.asyncio(loop_factories=["asyncio"])  # of the client; the server has its own


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=100_000)


@contextmanager
def serving(model: Path, *arguments: str, **environment: str) -> Iterator[ServerProcess]:
    """A server on the tiny model, which one thread computes fastest."""
    with running_server("--model", str(model), "--num-threads", "1", *arguments, **environment) as server:
        yield server


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


def test_mailboxes_larger_than_the_memory(no_leaks: None, tiny: Path) -> None:
    source = f"""
import sys
from ringpost.actors import cli, topology
topology.available_memory = lambda: 5_000_000
sys.exit(cli.main(["serve", "--port", "0", "--model", {str(tiny)!r}, "--mailbox-bytes", "2097152"]))
"""
    done = run_program("-P", "-c", source)
    assert_one_line(done.returncode, done.stderr, "mailbox_bytes=2097152, but only 5000000 bytes are free")
    assert re.search(r"the mailboxes need \d{7} bytes", done.stderr)


@pytest.mark.long
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


@on_one_loop
@pytest.mark.parametrize("victim", ["core0", "worker0.0"])
async def test_a_process_of_the_engine_dies(no_leaks: None, tiny: Path, tmp_path: Path, victim: str) -> None:
    """Every client learns which one and how, and so does whoever started the server."""
    with serving(tiny, "--max-restarts", "0", "--postmortem-dir", str(tmp_path)) as server:
        actors = actor_pids(server.process.pid)
        named = f"{victim} (pid {actors[victim]}): ProcessDied: killed by signal 9"
        async with Client(server.url) as client, begun_streams(client, **ENDLESS) as streams, asyncio.TaskGroup() as tasks:
            whole = tasks.create_task(client.post(COMPLETIONS, {"prompt": "ab"} | ENDLESS))
            await client.until(lambda scrape: scrape.load[0] == 4)
            with all_end(list(actors.values())):
                os.kill(actors[victim], signal.SIGKILL)
                for stream in streams:
                    *_, last = await stream.events()
                    assert last["error"]["code"] == "engine_dead"
                    assert named in last["error"]["message"]
                assert server.health() in (0, 503)
                with suppress(ClientConnectionError):  # it has ended already
                    assert (await client.post(COMPLETIONS, QUESTION))[0] == 503
        status, content = whole.result()
        assert status == 503
        assert named in json.loads(content)["error"]["message"]
        assert await asyncio.to_thread(server.wait) == 1
        lines = server.stderr().splitlines()
        assert lines[-1] == f"ringpost serve: {named}"
        assert "Traceback" not in server.stderr()


@pytest.mark.parametrize("victim", ["core0", "worker0.0"])
def test_a_process_of_the_engine_dies_while_nobody_asks_anything(
    no_leaks: None, tiny: Path, tmp_path: Path, victim: str
) -> None:
    """The server ends by itself, as one that failed, so that whoever watches it starts another."""
    with serving(tiny, "--max-restarts", "0", "--postmortem-dir", str(tmp_path)) as server:
        actors = actor_pids(server.process.pid)
        with all_end(list(actors.values())):
            os.kill(actors[victim], signal.SIGKILL)
            assert server.wait() == 1
        *_, last = server.stderr().splitlines()
        assert last == f"ringpost serve: {victim} (pid {actors[victim]}): ProcessDied: killed by signal 9"


@on_one_loop
@pytest.mark.parametrize("victim", ["core0", pytest.param("worker0.0", marks=pytest.mark.long)])
async def test_a_process_of_the_engine_is_replaced(no_leaks: None, tiny: Path, tmp_path: Path, victim: str) -> None:
    """Clients wait a little longer, and /health says why."""
    with serving(tiny, "--postmortem-dir", str(tmp_path)) as server:
        pid = actor_pids(server.process.pid)[victim]
        async with Client(server.url) as client, begun_streams(client, max_tokens=400, ignore_eos=True) as streams:
            os.kill(pid, signal.SIGKILL)
            while (error := await client.health()) is None:
                pass
            assert (error["type"], error["code"]) == ("service_unavailable_error", "engine_recovering")
            assert f"{victim} (pid {pid}): ProcessDied: killed by signal 9" in error["message"]
            late = await client.ask(COMPLETIONS, QUESTION)
            assert late.completion_tokens == QUESTION["max_tokens"]
            for stream in streams:
                *_, last = await stream.events_until_done()
                assert last["choices"][0]["finish_reason"] == "length"
            assert await client.health() is None
        assert actor_pids(server.process.pid)[victim] != pid


@pytest.mark.long
@on_one_loop
@pytest.mark.parametrize("busy", [True, False])
async def test_the_server_itself_is_killed(no_leaks: None, tiny: Path, busy: bool) -> None:
    """Nobody outlives it, and its port is free at once."""
    with serving(tiny) as server, all_end(list(actor_pids(server.process.pid).values())):
        async with Client(server.url) as client, begun_streams(client, 3 * busy, **ENDLESS):
            assert server.stop(signal.SIGKILL) == -signal.SIGKILL
        with serving(tiny, "--port", str(urlsplit(server.url).port)) as again:
            assert again.url == server.url
            async with Client(again.url) as client:
                assert (await client.ask(COMPLETIONS, QUESTION)).completion_tokens == 3


def test_the_server_is_killed_before_it_is_ready(no_leaks: None, tiny: Path) -> None:
    command = [COMMAND, "serve", "--model", str(tiny), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        while len(actors := actor_pids(process.pid)) < 2:
            assert process.poll() is None
        with all_end(list(actors.values())):
            process.kill()
            output, _ = process.communicate(timeout=LIMIT)
    assert output == b""


def test_nothing_of_an_engine_has_a_name_that_another_could_use(no_leaks: None, tiny: Path) -> None:
    """Beside the server's port: no file, no socket, no shared memory."""
    with serving(tiny) as server:
        actors = actor_pids(server.process.pid)
        assert len(actors) == 2
        for pid in (server.process.pid, *actors.values()):
            opened = targets_of(pid)
            named = {name for name in opened if name.startswith("/") and "(deleted)" not in name and name != "/dev/null"}
            assert not {name for name in named if not Path(name).is_relative_to(tiny)}
            assert len(listening(opened)) == (pid == server.process.pid)


def targets_of(pid: int) -> list[str]:
    """What a process's descriptors lead to."""
    return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def listening(opened: Iterable[str]) -> set[str]:
    """Those among them that are sockets to which others can connect."""
    tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    inodes = {row[9] for row in rows if row[3] == "0A"} | {
        row[6] for row in map(str.split, Path("/proc/net/unix").read_text().splitlines()[1:]) if row[3] == "00010000"
    }
    return {name for name in opened if name.removeprefix("socket:[").rstrip("]") in inodes}


def test_as_many_files_may_be_open_as_there_may_be_connections(no_leaks: None, tiny: Path) -> None:
    serve = [COMMAND, "serve", "--model", str(tiny), "--num-threads", "1", "--port", "0"]
    with running_program(["sh", "-c", 'ulimit -Sn 256 && exec "$0" "$@"', *serve]) as server:
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        assert server.stderr() == ""
    (soft,) = re.findall(r"^Max open files +(\d+)", limits, re.MULTILINE)
    assert int(soft) == ApiConfig().max_connections + 256


@pytest.mark.parametrize(
    ("soft", "hard", "expected"), [(256, 300, 300), (300, 300, 300), (256, 4000, 1256), (3000, 4000, 3000)]
)
def test_the_limit_on_open_files(soft: int, hard: int, expected: int) -> None:
    """It is raised as far as the system lets it, and never lowered."""
    source = f"""
import resource
from ringpost.actors.serve import _raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
_raise_file_limit(1000)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    done = run_program("-P", "-c", source)
    assert done.stdout == f"{(expected, hard)}\n"
    warning = f"max_connections=1000 needs 1256 open files; this process may have {hard}\n"
    assert done.stderr == (warning if expected < 1256 else "")


ROUNDS = [1, pytest.param(5, marks=pytest.mark.long)]


@pytest.mark.long
@on_one_loop
@pytest.mark.parametrize("rounds", ROUNDS)
async def test_four_servers_at_once(no_leaks: None, tiny: Path, rounds: int) -> None:
    names = [f"model-{number}" for number in range(4)]
    for _ in range(rounds):
        with ExitStack() as stack, ThreadPoolExecutor(len(names)) as pool:

            def start(name: str, stack: ExitStack = stack) -> ServerProcess:
                return stack.enter_context(serving(tiny, "--served-model-name", name))

            servers = list(pool.map(start, names))
            killed, *others = zip(names, servers, strict=True)
            for name, server in (killed, *others):
                await assert_answers(name, server)
            killed[1].stop(signal.SIGKILL)
            for name, server in others:
                await assert_answers(name, server)


async def assert_answers(name: str, server: ServerProcess) -> None:
    async with Client(server.url) as client:
        answer = await client.ask(COMPLETIONS, QUESTION)
        assert answer.events[0]["model"] == name
        status, _ = await client.post(COMPLETIONS, QUESTION | {"model": "model-x"})
        assert status == 404


@on_one_loop
@pytest.mark.parametrize("level", ["debug", "info"])
async def test_what_stays_out_of_command_lines_and_logs(no_leaks: None, tiny: Path, level: str) -> None:
    """The key nowhere, not even at level debug; prompts and answers not at level info."""
    with serving(tiny, "--log-level", level, RINGPOST_API_KEY=KEY) as server:
        async with Client(server.url) as client:
            secret = {"prompt": "a secret thought", "max_tokens": 3, "logit_bias": {"100": 100}}
            assert (await client.post(COMPLETIONS, secret))[0] == 401
            headers = {"Authorization": f"Bearer {KEY}"}
            answer = await client.ask(COMPLETIONS, secret, headers)
            assert (await client.post(COMPLETIONS, secret | {"seed": "x"}, headers))[0] == 400
        for pid in (server.process.pid, *actor_pids(server.process.pid).values()):
            words = command_line(pid)
            assert words
            assert not [word for word in words if KEY in word]
        assert server.stop() == 0
        log = server.stderr()
        assert f"POST {COMPLETIONS}" in log
        assert KEY not in log
        if level == "info":
            assert "secret" not in log
            assert answer.first.text not in log
