"""Frontends and clients that do not read: only their own requests wait for them, and nothing is lost meanwhile."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from api_client import COMPLETIONS, Answer, Client
from plain_frontend import PlainFrontend, answers_of, start_frontend
from raw_streams import begun_streams
from servers import running_server
from tiny_checkpoint import write_tiny_llama

from ringpost import EngineConfig, SamplingParams
from ringpost.actors.config import engine_config, resolve_config
from ringpost.actors.supervisor import Supervisor
from ringpost.ipc.messages.requests import FRONTEND_SHIFT, AddRequest

ROWS = 32
LONG, SHORT = 500, 60  # tokens of an answer; of a long one, some 400 are made while its frontend is stopped
COMPARED = 10  # one answer in so many
BLOCKS = ROWS * 25  # little more than what the long ones have computed when they are parked
LONG_NAME = "m" * 8000  # of the model, in every event of a stream


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", num_hidden_layers=1, max_position_embeddings=4096))


@pytest.fixture(scope="module")
def config(tiny: str) -> EngineConfig:
    options = {"num_blocks_override": BLOCKS, "max_num_seqs": ROWS, "mailbox_bytes": 1 << 16, "num_threads": 1}
    return resolve_config(engine_config(model=tiny, dtype="float32", **options))


def requests(frontend: int, count: int, max_tokens: int) -> list[AddRequest]:
    """Hot ones: the noise decides, which is the same in any batch, and not the last bit of a logit."""
    return [
        AddRequest(
            frontend << FRONTEND_SHIFT | number,
            f"{frontend}-{number}",
            [5 + number] * (9 + number),
            SamplingParams(temperature=2, seed=number, max_tokens=max_tokens, ignore_eos=True),
            0.0,
        )
        for number in range(1, count + 1)
    ]


@asynccontextmanager
async def two_frontends(config: EngineConfig) -> AsyncIterator[tuple[Supervisor, PlainFrontend]]:
    """An engine for two; the first one is here."""
    async with Supervisor(config, num_frontends=2) as supervisor:
        assert await supervisor.wait_ready() is None
        topology = supervisor.topology
        frontend = PlainFrontend(topology.requests[0][0].duplicate(), topology.outputs[0][0].duplicate())
        try:
            yield supervisor, frontend
        finally:
            frontend.close()


def private_kilobytes(pid: int) -> int:
    """Memory of a process, but for mailboxes and mapped files."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])


@contextmanager
def halted(process: asyncio.subprocess.Process) -> Iterator[None]:
    """The process does nothing meanwhile, and goes on in any case."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.mark.long
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_stopped_frontend_holds_up_nobody_and_loses_nothing(no_leaks: None, config: EngineConfig) -> None:
    """It has every row and every block when it stops. The other one's requests get them, and run to their end."""
    async with two_frontends(config) as (supervisor, frontend):
        (core,) = [process.pid for process in supervisor.process_table() if process.kind == "engine_core"]
        undisturbed = list((await frontend.answers(requests(0, ROWS, LONG)[::COMPARED])).values())
        other = await start_frontend(supervisor, 1, requests(1, ROWS, LONG))
        await frontend.described(lambda core: core.running == ROWS)
        with halted(other):
            stopped = await frontend.described(lambda core: core.parked == ROWS)
            assert (stopped.running, stopped.waiting) == (0, ROWS)
            assert stopped.free_blocks < BLOCKS / 2, "they keep what they have computed"
            before = private_kilobytes(core)
            answers = await frontend.answers(requests(0, ROWS, SHORT))
            assert [len(tokens) for tokens in answers.values()] == [SHORT] * ROWS
            after = await frontend.describe()
            assert (after.parked, after.waiting) == (ROWS, ROWS)
            assert stopped.free_blocks < after.free_blocks < BLOCKS, "some had to give theirs, and will compute them again"
            assert private_kilobytes(core) < before + 1000
        late = list((await answers_of(other)).values())
        assert [len(tokens) for tokens in late] == [LONG] * ROWS
        assert late[::COMPARED] == undisturbed
        idle = await frontend.describe()
        assert (idle.running, idle.waiting, idle.parked, idle.free_blocks) == (0, 0, 0, BLOCKS)


@pytest.mark.asyncio(loop_factories=["asyncio"])  # of the clients; the server has its own
async def test_a_client_that_does_not_read_costs_the_others_nothing(no_leaks: None, tiny: str) -> None:
    """Its answer would be eight megabytes of events. What it does not take is merged into fewer of them."""
    fields = {"max_tokens": 1000, "temperature": 2, "seed": 5, "ignore_eos": True, "return_token_ids": True}
    options = ("--model", tiny, "--dtype", "float32", "--num-threads", "1", "--served-model-name", LONG_NAME)
    with running_server(*options) as server:
        async with Client(server.url) as client:
            whole = await client.ask(COMPLETIONS, {"prompt": "ab", **fields})
            before = private_kilobytes(server.process.pid)
            async with begun_streams(client, 1, little_room=True, **fields) as (slow,):
                for seed in range(3):
                    answer = await client.stream(COMPLETIONS, {"prompt": "ab", **fields, "max_tokens": 100, "seed": seed})
                    assert len(answer.first.token_ids) == 100
                await client.idle()
                assert private_kilobytes(server.process.pid) < before + 4000
                events = await slow.events_until_done()
            assert Answer(events).first == whole.first
            assert len(events) < 500
