"""What a server tells of preemptions, hits and ends, and that nothing is held once they are over."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from api_client import COMPLETIONS, Client, Json, Metrics
from programs import run_ringpost
from servers import ServerProcess, running_server
from tiny_checkpoint import write_tiny_llama

from ringpost.actors.engine_view import Report

BLOCKS, SIZE = 256, 16
PROMPT = [100 + number for number in range(2 * SIZE + 1)]  # two full blocks, and the token that is always computed
BODY: Json = {"prompt": PROMPT, "max_tokens": 2, "ignore_eos": True, "seed": 1}
REASONS = ("stop", "length", "abort", "error")

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # of the client; the server has its own


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=BLOCKS * SIZE)


@pytest.fixture
def server(no_leaks: None, tiny: Path) -> Iterator[ServerProcess]:
    options = ["--num-threads", "1", "--block-size", str(SIZE), "--num-blocks-override", str(BLOCKS)]
    with running_server(
        "--model", str(tiny), *options, "--scheduling-policy", "priority", "--enable-reset-prefix-cache"
    ) as running:
        yield running
        assert running.stderr() == ""


def counts(scrape: Metrics) -> list[float]:
    names = ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits")
    return [scrape.value(f"ringpost:{name}_total") for name in names]


def ends(scrape: Metrics) -> list[float]:
    return [scrape.value("ringpost:request_success_total", finished_reason=reason) for reason in REASONS]


async def cached(client: Client, **fields: object) -> list[int]:
    """Prompt tokens found in the cache, by the usage of a whole answer and of a streamed one after it."""
    found = []
    for answer in await client.both(COMPLETIONS, BODY | fields):
        assert answer.usage is not None
        found.append(answer.usage["prompt_tokens_details"]["cached_tokens"])
    return found


async def test_hits_are_told_to_clients_and_counted(server: ServerProcess) -> None:
    async with Client(server.url) as client:
        assert counts(await client.idle()) == [0, 0, 0]
        assert await cached(client) == [0, 2 * SIZE]
        assert await cached(client, n=2) == [2 * SIZE, 2 * SIZE]
        assert await cached(client, cache_salt="mine") == [0, 2 * SIZE]
        scrape = await client.idle()
        assert counts(scrape) == [0, 6 * len(PROMPT), 4 * 2 * SIZE]
        for query in ("", "?reset_running_requests=true"):
            assert (await client.post(f"/reset_prefix_cache{query}", b""))[0] == 200
            assert await cached(client) == [0, 2 * SIZE]
        assert counts(await client.idle()) == [0, 10 * len(PROMPT), 6 * 2 * SIZE]
    words = ("top", "--once", "--json", "--interval", "0.1", "--pid", str(server.process.pid))
    done = await asyncio.to_thread(run_ringpost, *words)
    (engine,) = msgspec.json.decode(done.stdout, type=Report).engines
    (core,) = [actor for actor in engine.actors if actor.kind == "engine_core"]
    assert core.preemptions == 0
    assert core.prefix_hit_rate == pytest.approx(6 * 2 * SIZE / (10 * len(PROMPT)), abs=1e-3)


async def test_preemptions_are_counted_and_everything_is_given_back(server: ServerProcess) -> None:
    """Answers that outgrow the cache together; then clients that leave, and requests that are wrong."""
    async with Client(server.url) as client:
        bodies = [BODY | {"prompt": [100 + number] * 20, "max_tokens": 300, "priority": -5} for number in range(16)]
        answers = await asyncio.gather(*(client.ask(COMPLETIONS, body) for body in bodies))
        assert [answer.completion_tokens for answer in answers] == [300] * 16
        before = await client.idle()
        assert counts(before)[0] > 0
        assert ends(before) == [0, 16, 0, 0]

        async with asyncio.TaskGroup() as tasks:
            for body in bodies[:4]:
                tasks.create_task(client.leave_after(2, COMPLETIONS, body | {"max_tokens": 4000}))
        mistakes: list[Json] = [{"priority": 2**63}, {"cache_salt": ""}, {"prompt": []}]
        for wrong in mistakes:
            await client.refused(COMPLETIONS, BODY | wrong)
        await client.until(lambda scrape: ends(scrape)[2] == 4)
        after = await client.idle()
        assert ends(after) == [0, 16, 4, 0]
        assert after.value("ringpost:http_requests_total", handler=COMPLETIONS, status="400") == 3
        assert all(after.counters()[key] >= number for key, number in before.counters().items())
        assert await cached(client) == [0, 2 * SIZE]
