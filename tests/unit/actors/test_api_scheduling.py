"""What a client says about its turn and its cached prefixes, and what it learns of them."""

from typing import Any

import pytest
from api_client import CHAT, COMPLETIONS, Json
from scripted_engine import End, ScriptedEngine
from served_app import AppClient, Reply, served

pytestmark = pytest.mark.asyncio

BODIES: dict[str, Json] = {COMPLETIONS: {"prompt": "hi"}, CHAT: {"messages": [{"role": "user", "content": "hi"}]}}
RESET = "/reset_prefix_cache"
USAGE = {"include_usage": True}
MOST = 2**63 - 1


@pytest.fixture
def engine(tiny: str) -> ScriptedEngine:
    return ScriptedEngine(tiny, scheduling_policy="priority")


def cached(usage: Json) -> int:
    count: int = usage["prompt_tokens_details"]["cached_tokens"]
    return count


async def both(api: AppClient, engine: ScriptedEngine, path: str, found: list[int], **fields: Any) -> list[Json]:
    """The usage of a whole answer and of a streamed one, whose prompts find so many tokens in the cache."""
    engine.cached = list(found)
    whole: Reply = await api.call(path, BODIES[path] | fields)
    engine.cached = list(found)
    stream = await api.call(path, BODIES[path] | fields | {"stream": True, "stream_options": USAGE})
    assert engine.cached == []
    return [whole.json["usage"], stream.events[-1]["usage"]]


@pytest.mark.parametrize("path", BODIES)
async def test_priority_and_salt_reach_the_core(engine: ScriptedEngine, path: str) -> None:
    async with served(engine) as api:
        for fields in ({"priority": -7, "cache_salt": "salé"}, {"priority": None, "cache_salt": None}, {}, {"priority": MOST}):
            assert (await api.call(path, BODIES[path] | fields)).status == 200
        assert (await api.call(path, BODIES[path] | {"n": 2, "priority": 3, "cache_salt": "x" * 256})).status == 200
    told = [(request.message.priority, request.message.cache_salt) for request in engine.requests]
    assert told == [(-7, "salé"), (0, ""), (0, ""), (MOST, ""), (3, "x" * 256)]


@pytest.mark.parametrize("path", BODIES)
async def test_a_priority_that_would_not_count_is_refused(tiny: str, path: str) -> None:
    engine = ScriptedEngine(tiny)
    async with served(engine) as api:
        for fields in ({"priority": 5}, {"priority": 5, "stream": True}, {"priority": 5, "n": 2}):
            reply = await api.call(path, BODIES[path] | fields)
            assert (reply.status, reply.error["param"]) == (400, "priority")
            assert "got 5" in reply.error["message"]
            assert "--scheduling-policy priority" in reply.error["message"]
        assert (await api.call(path, BODIES[path] | {"priority": 0})).status == 200
        scrape = await api.metrics()
    assert len(engine.requests) == 1
    assert scrape.value("ringpost:request_success_total") == 1
    assert scrape.value("ringpost:http_requests_total", status="400") == 3


@pytest.mark.parametrize("path", BODIES)
async def test_hits_of_one_prompt(engine: ScriptedEngine, path: str) -> None:
    async with served(engine) as api:
        for found in (0, 2):
            for usage in await both(api, engine, path, [found]):
                assert cached(usage) == found
        engine.answers[None] = [End("whole")]  # all in one step
        for usage in await both(api, engine, path, [2]):
            assert cached(usage) == 2


async def test_hits_of_several_prompts_add_up(engine: ScriptedEngine) -> None:
    async with served(engine) as api:
        for usage in await both(api, engine, COMPLETIONS, [1, 0, 2], prompt=["cat", "dog", "cow"]):
            assert (cached(usage), usage["prompt_tokens"]) == (3, 9)


@pytest.mark.parametrize("path", BODIES)
async def test_the_prompt_of_several_choices_counts_once(engine: ScriptedEngine, path: str) -> None:
    async with served(engine) as api:
        for found in (0, 2):
            alone, together = await both(api, engine, path, [found]), await both(api, engine, path, [found], n=3)
            for one, usage in zip(alone, together, strict=True):
                assert (cached(usage), usage["prompt_tokens"]) == (found, one["prompt_tokens"])
                assert usage["completion_tokens"] == 3 * one["completion_tokens"]


async def test_hits_of_several_prompts_with_several_choices(engine: ScriptedEngine) -> None:
    async with served(engine) as api:
        for usage in await both(api, engine, COMPLETIONS, [2, 0], prompt=["cat", "dog"], n=2):
            assert (cached(usage), usage["prompt_tokens"]) == (2, 6)


@pytest.mark.parametrize("path", BODIES)
async def test_every_event_tells_the_hits_of_its_prompt(engine: ScriptedEngine, path: str) -> None:
    engine.cached = [2]
    options = USAGE | {"continuous_usage_stats": True}
    async with served(engine) as api:
        *events, last = (await api.call(path, BODIES[path] | {"n": 2, "stream": True, "stream_options": options})).events
    assert {(event["choices"][0]["index"], cached(event["usage"])) for event in events} == {(0, 2), (1, 2)}
    assert cached(last["usage"]) == 2


@pytest.mark.parametrize(
    ("query", "running"),
    [("", False), ("?reset_running_requests=false", False), ("?reset_running_requests=true", True), ("?other=1", False)],
)
async def test_the_prefix_cache_is_reset(engine: ScriptedEngine, query: str, running: bool) -> None:
    async with served(engine, enable_reset_prefix_cache=True) as api:
        reply = await api.call(RESET + query)
        assert (reply.status, reply.body) == (200, b"")
        assert engine.resets == [running]
        assert (await api.metrics()).value("ringpost:http_requests_total", handler=RESET, status="200") == 1


@pytest.mark.parametrize("value", ["", "1", "yes", "True", "x" * 1000])
async def test_a_reset_of_what_is_not_clear_is_refused(engine: ScriptedEngine, value: str) -> None:
    async with served(engine, enable_reset_prefix_cache=True) as api:
        reply = await api.call(f"{RESET}?reset_running_requests={value}")
    assert (reply.status, reply.error["param"]) == (400, "reset_running_requests")
    assert "must be true or false, got" in reply.error["message"]
    assert len(reply.body) < 500
    assert engine.resets == []


async def test_a_reset_needs_a_post_and_a_living_engine(engine: ScriptedEngine) -> None:
    async with served(engine, enable_reset_prefix_cache=True) as api:
        assert (await api.get(RESET)).status == 405
        engine.die()
        reply = await api.call(RESET)
        assert (reply.status, reply.error["code"]) == (503, "engine_dead")
    assert engine.resets == []


async def test_without_the_option_there_is_no_reset(engine: ScriptedEngine) -> None:
    async with served(engine) as api:
        reply = await api.call(RESET)
        assert (reply.status, "--enable-reset-prefix-cache" in reply.error["message"]) == (404, True)
    assert engine.resets == []
