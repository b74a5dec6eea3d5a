"""Clients that leave before their answer is complete, or do not read it."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from api_client import CHAT, COMPLETIONS, Json
from scripted_engine import ScriptedEngine, Step
from served_app import AppClient, served, unread
from tiny_checkpoint import write_tiny_llama

BODIES: dict[str, Json] = {COMPLETIONS: {"prompt": "hi"}, CHAT: {"messages": [{"role": "user", "content": "hi"}]}}
PATHS = list(BODIES)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def engine(tiny: str) -> ScriptedEngine:
    return ScriptedEngine(tiny)


@pytest_asyncio.fixture
async def api(engine: ScriptedEngine) -> AsyncIterator[AppClient]:
    async with served(engine) as client:
        yield client


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reset", [False, True])
async def test_a_client_that_leaves_ends_its_request(
    no_leaks: None, api: AppClient, engine: ScriptedEngine, path: str, stream: bool, reset: bool
) -> None:
    engine.answers[None] = ["a"]
    body = BODIES[path] | {"stream": stream, "request_id": "r"}
    async with api.sent(path, body, reset=reset) as reader:
        await engine.nth_request(0)
        if stream:
            await reader.readuntil(b"}\n\n")
    await engine.until(lambda: engine.aborted == ["r"])
    assert engine.num_unfinished_requests == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_its_prompt_is_rendered(
    no_leaks: None, api: AppClient, engine: ScriptedEngine, path: str, stream: bool
) -> None:
    engine.may_render.clear()
    async with api.sent(path, BODIES[path] | {"stream": stream}):
        await engine.until(lambda: engine.rendering == 1)
    await engine.until(lambda: engine.rendering == 0)
    assert engine.num_unfinished_requests == 0
    assert engine.requests == []


@pytest.mark.asyncio
async def test_a_client_that_leaves_ends_all_its_prompts(no_leaks: None, api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers[None] = ["a"]
    for stream in (False, True):
        engine.aborted.clear()
        async with api.sent(COMPLETIONS, {"prompt": ["cat", "dog", "bird"], "stream": stream, "request_id": "r"}):
            await engine.until(lambda: engine.num_unfinished_requests == 3)
        await engine.until(lambda: sorted(engine.aborted) == ["r-0", "r-1", "r-2"])


@pytest.mark.asyncio
async def test_a_client_that_leaves_is_no_line_in_the_log(
    api: AppClient, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.answers[None] = ["a"]
    for stream in (False, True):
        async with api.sent(COMPLETIONS, {"prompt": "hi", "stream": stream}, reset=True):
            await engine.until(lambda: engine.num_unfinished_requests == 1)
        await engine.until(lambda: engine.num_unfinished_requests == 0)
    metrics = await api.until(lambda scrape: scrape.value("ringpost:http_requests_total", status="499") == 2)
    assert metrics.value("ringpost:http_requests_total", status="500") != 1
    assert not caplog.records


def endless() -> list[Step]:
    return ["x" * 10_000] * 2_000  # more than any socket holds


@pytest.mark.asyncio
async def test_a_client_that_does_not_read_holds_nobody_up(no_leaks: None, api: AppClient, engine: ScriptedEngine) -> None:
    engine.answers["much"] = endless()
    async with unread(api.url, COMPLETIONS, {"prompt": "much", "stream": True, "request_id": "r"}):
        stuck = await engine.nth_request(0)
        for path in PATHS:
            assert len((await api.call(path, BODIES[path] | {"stream": True})).events) >= 3
        assert stuck.unsaid, "the server has taken all of it, and keeps it"
        assert engine.num_unfinished_requests == 1
    await engine.until(lambda: engine.aborted == ["r"])
