"""`ringpost top` beside a running server: what it shows, what it costs the engine, and how it ends."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from api_client import COMPLETIONS, Client
from process_tree import actor_pids
from programs import run_ringpost
from raw_streams import ENDLESS, begun_streams
from servers import ServerProcess, running_server
from terminals import Terminal
from tiny_checkpoint import write_tiny_llama

from ringpost.actors.engine_look import look
from ringpost.actors.engine_view import ActorView, EngineView, MailboxView, Report, compare

TERMINAL = {"TERM": "xterm", "COLUMNS": "160", "LINES": "50"}

on_one_loop = pytest.mark.asyncio(loop_factories=["asyncio"])  # of the client; the server has its own


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=100_000)


@pytest.fixture
def server(no_leaks: None, tiny: Path) -> Iterator[ServerProcess]:
    with running_server("--model", str(tiny), "--num-threads", "1") as server:
        yield server


def engine_of(server: ServerProcess, interval: str = "0.5") -> EngineView:
    """What `ringpost top --once --json` tells about the server's engine."""
    done = run_ringpost("top", "--once", "--json", "--interval", interval, "--pid", str(server.process.pid))
    assert (done.returncode, done.stderr) == (0, "")
    report = msgspec.json.decode(done.stdout, type=Report)
    assert report.seconds >= float(interval)
    (engine,) = report.engines
    assert engine.supervisor == server.process.pid
    assert set(engine.pids) == {server.process.pid, *actor_pids(server.process.pid).values()}
    return engine


def actors_of(engine: EngineView) -> dict[str, ActorView]:
    return {actor.name: actor for actor in engine.actors}


def mailboxes_of(engine: EngineView) -> dict[str, MailboxView]:
    return {mailbox.name: mailbox for mailbox in engine.mailboxes}


@on_one_loop
async def test_an_engine_at_work_and_idle(server: ServerProcess) -> None:
    pids = {"frontend0": server.process.pid} | actor_pids(server.process.pid)
    async with Client(server.url) as client:
        async with begun_streams(client, 1, **ENDLESS):
            engine = await asyncio.to_thread(engine_of, server)
        actors, mailboxes = actors_of(engine), mailboxes_of(engine)
        assert {name: actor.pid for name, actor in actors.items()} == pids
        assert all(actor.alive and actor.state == "ready" and actor.rss_bytes for actor in actors.values())
        assert (actors["core0"].running, actors["core0"].waiting) == (1, 0)
        for name in pids:
            assert (actors[name].steps_per_second or 0) > 0, actors[name]
        assert (actors["worker0.0"].cpu_percent or 0) > 0
        for name in ("plans[0]", "results[0,0]", "outputs[0,0]"):
            assert (mailboxes[name].messages_per_second or 0) > 0, mailboxes[name]
            assert (mailboxes[name].bytes_per_second or 0) > 0, mailboxes[name]
        assert mailboxes["requests[0,0]"].writer.messages >= 1
        await client.idle()
    engine = await asyncio.to_thread(engine_of, server)
    assert actors_of(engine)["core0"].running == 0
    assert {actor.steps_per_second for actor in engine.actors} == {0}
    for mailbox in engine.mailboxes:
        assert (mailbox.messages_per_second, mailbox.bytes_per_second, mailbox.depth) == (0, 0, 0)
        assert [reader.wait_share for reader in mailbox.readers] == [1], mailbox
        assert [side.lost_wakeups for side in (mailbox.writer, *mailbox.readers)] == [0, 0]


def switches(pids: list[int]) -> list[str]:
    """How often each thread of these processes was given a core, and what the processes have used."""
    found = []
    for pid in pids:
        for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
            with suppress(FileNotFoundError):  # a thread that has just ended
                found += [line for line in (task / "status").read_text().splitlines() if "ctxt_switches" in line]
        found += Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return found


@on_one_loop
async def test_looking_costs_an_idle_engine_nothing(server: ServerProcess) -> None:
    """None of its threads runs. Some stretch of looks must be free of switches, since the engine's own timers are far apart."""
    async with Client(server.url) as client:
        await client.ask(COMPLETIONS, {"prompt": "ab", "max_tokens": 3})
        await client.idle()
    pids = list(actor_pids(server.process.pid).values())
    assert len(pids) == 2
    for _ in range(20):
        before = switches(pids)
        for _ in range(20):
            seen = look(pids)
            assert len(seen.engines[0].actors) == 3
            compare(seen, seen)
        if switches(pids) == before:
            return
    pytest.fail("threads of the engine ran in each of 20 stretches of looks")


def test_the_table_without_a_terminal(server: ServerProcess) -> None:
    done = run_ringpost("top", "--interval", "0.1", "--pid", str(server.process.pid))
    assert (done.returncode, done.stderr) == (0, "")
    for word in (f"engine of pid {server.process.pid}", "core0", "worker0.0", "engine_core", "ready", "requests[0,0]"):
        assert word in done.stdout
    assert "\x1b" not in done.stdout


def test_at_a_terminal_it_refreshes_until_an_interrupt(server: ServerProcess) -> None:
    with Terminal("top", "--interval", "0.1", "--pid", str(server.process.pid), **TERMINAL) as terminal:
        for _ in range(3):
            terminal.wait_for("worker0.0")
        terminal.type("\x03")
        assert terminal.wait_for_end() == 130
        assert "Traceback" not in terminal.wait_for("\x1b[?1049l")  # back from the other screen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_at_a_terminal_it_ends_with_the_engine(server: ServerProcess, number: int) -> None:
    with Terminal("top", "--interval", "0.1", "--pid", str(server.process.pid), **TERMINAL) as terminal:
        terminal.wait_for("worker0.0")
        server.stop(number)
        assert "Traceback" not in terminal.wait_for("ringpost top: the engine has ended")
        assert terminal.wait_for_end() == 0


def test_a_signal_leaves_the_terminal_as_it_was(server: ServerProcess) -> None:
    with Terminal("top", "--pid", str(server.process.pid), **TERMINAL) as terminal:
        terminal.wait_for("worker0.0")
        terminal.process.terminate()
        assert terminal.wait_for_end() == 128 + signal.SIGTERM
        terminal.wait_for("\x1b[?1049l")


def test_without_an_engine_it_is_one_line(no_leaks: None) -> None:
    done = run_ringpost("top", "--once", "--json", "--pid", str(os.getpid()))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"ringpost top: no running engine has a process {os.getpid()}\n"
