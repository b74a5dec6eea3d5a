"""Clients that leave, ids that are used twice, and the server's numbers after all of that: nothing is left behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from api_client import CHAT, COMPLETIONS, Answer, Client, Json, Metrics
from demo_tokens import DEF, EOS, FRANCE, force, then_eos, user
from servers import ServerProcess, running_server

SEATS = 4  # requests that run at once
ENDLESS = {"max_tokens": 400, "ignore_eos": True, "temperature": 0}
MEGABYTE = 1 << 20

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # of the client; the server has its own


@pytest.fixture(scope="module", params=["uvloop", pytest.param("asyncio", marks=pytest.mark.long)])
def server(smollm2: str, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    options = ["--dtype", "float32", "--max-model-len", "512", "--num-threads", "1"]
    with running_server(*options, "--max-num-seqs", str(SEATS), "--loop", request.param) as running:
        yield running
        assert running.stderr() == ""


@pytest_asyncio.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with Client(server.url) as connected:
        yield connected
        answer = await connected.ask(COMPLETIONS, {"prompt": FRANCE, "max_tokens": 1, "temperature": 0})
        assert answer.first.text == " Paris", "the server is no longer well"


class Growth:
    """How much the server's numbers have grown between two scrapes."""

    def __init__(self, before: Metrics, after: Metrics) -> None:
        self._before, self._after = before, after

    def __call__(self, name: str, **labels: str) -> float:
        return self._after.value(name, **labels) - self._before.value(name, **labels)

    def finished(self, *reasons: str) -> list[float]:
        """Requests that ended for each of these reasons."""
        return [self("ringpost:request_success_total", finished_reason=reason) for reason in reasons]


@pytest.mark.parametrize("reset", [False, True])
async def test_requests_that_send_nothing_yet_end_when_their_clients_leave(client: Client, reset: bool) -> None:
    before = await client.idle()
    async with AsyncExitStack() as running, AsyncExitStack() as queued:
        for _ in range(SEATS):
            body = {"prompt": [504] * 10, **ENDLESS}
            await running.enter_async_context(client.sent(COMPLETIONS, body, reset=reset))
        read = before.value("ringpost:prompt_tokens_total") + 10 * SEATS
        await client.until(lambda scrape: scrape.value("ringpost:prompt_tokens_total") == read)
        for stream in (False, True):
            body = {"messages": user(FRANCE), "stream": stream, **ENDLESS}
            await queued.enter_async_context(client.sent(CHAT, body, reset=reset))
        await client.until(lambda scrape: scrape.load[:2] == (SEATS, 2))
        await queued.aclose()
        await client.until(lambda scrape: scrape.load[:2] == (SEATS, 0))
    growth = Growth(before, await client.idle())
    assert growth("ringpost:prompt_tokens_total") == 10 * SEATS, "a request that nobody waits for was begun"
    assert growth("ringpost:generation_tokens_total") < SEATS * 400
    assert growth.finished("abort", "length", "stop", "error") == [SEATS + 2, 0, 0, 0]


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.long)])
async def test_clients_leave_in_the_middle_of_their_streams(client: Client, count: int) -> None:
    before = await client.idle()
    bodies = [(COMPLETIONS, {"prompt": FRANCE, **ENDLESS}), (CHAT, {"messages": user(FRANCE), **ENDLESS})]
    async with asyncio.TaskGroup() as clients:
        for number in range(count):
            clients.create_task(client.leave_after(1 + number % 3, *bodies[number % 2], reset=number % 4 > 1))
    growth = Growth(before, await client.idle())
    assert growth.finished("abort", "length", "stop", "error") == [count, 0, 0, 0]
    assert growth("ringpost:generation_tokens_total") < count * 400


async def ten_at_a_time(count: int, visit: Callable[[], Awaitable[object]]) -> None:
    gate = asyncio.Semaphore(10)

    async def gated() -> None:
        async with gate:
            await visit()

    await asyncio.gather(*(gated() for _ in range(count)))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", [0.1, pytest.param(1, marks=pytest.mark.long)])
async def test_nothing_leaks_slowly(client: Client, share: float) -> None:
    async def leave() -> None:
        await client.leave_after(1, COMPLETIONS, {"prompt": FRANCE, **ENDLESS})

    async def too_long() -> None:
        await client.refused(COMPLETIONS, {"prompt": [504] * 513})

    async def stopped() -> None:
        answer = await client.stream(COMPLETIONS, {"prompt": FRANCE, **then_eos(DEF, 2)})
        assert (answer.first.text, answer.first.finish_reason) == ("DEFDEF", "stop")

    visits = ((300, leave), (1000, too_long), (100, stopped))
    for _, visit in visits:  # what is made on first use is no leak
        await ten_at_a_time(10, visit)
    before = await client.idle()
    for count, visit in visits:
        await ten_at_a_time(int(count * share), visit)
    await client.idle()
    most = before.value("process_open_fds") + 5
    after = await client.until(lambda scrape: scrape.value("process_open_fds") <= most)
    assert Growth(before, after)("process_resident_memory_bytes") < 50 * MEGABYTE


def story(topic: str, tokens: int) -> Json:
    fields = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    return {"prompt": f"A story about {topic}:", **fields}


@pytest.mark.parametrize("where", ["header", "body"])
async def test_two_requests_of_one_id_do_not_mix(client: Client, where: str) -> None:
    def ask(body: Json) -> Awaitable[Answer]:
        if where == "header":
            return client.stream(COMPLETIONS, body, headers={"X-Request-Id": "id-1"})
        return client.stream(COMPLETIONS, body | {"request_id": "id-1"})

    bodies = [story("a fox", 20), story("the sea", 12)]
    alone = [await client.stream(COMPLETIONS, body) for body in bodies]
    together = await asyncio.gather(*map(ask, bodies))
    assert [answer.choices for answer in together] == [answer.choices for answer in alone]
    assert {event["id"] for answer in together for event in answer.events} == {"cmpl-id-1"}
    await client.idle()


async def test_an_id_is_free_again_when_its_client_has_left(client: Client) -> None:
    body = story("the moon", 8)
    alone = await client.ask(COMPLETIONS, body)
    for _ in range(3):
        await client.leave_after(2, COMPLETIONS, {**story("a fox", 400), "request_id": "id-2"})
        assert (await client.ask(COMPLETIONS, body | {"request_id": "id-2"})).choices == alone.choices
    await client.idle()


@pytest.mark.long
async def test_fifty_requests_of_one_id(client: Client) -> None:
    topics = ["a fox", "the sea", "the moon", "two birds", "a king"]
    alone = [await client.ask(COMPLETIONS, story(topic, 3)) for topic in topics]
    before = await client.idle()
    asked = [client.ask(COMPLETIONS, story(topic, 3), {"X-Request-Id": "id-3"}) for topic in topics * 10]
    together = await asyncio.gather(*asked)
    assert [answer.choices for answer in together] == [answer.choices for answer in alone * 10]
    assert Growth(before, await client.idle()).finished("length", "stop", "abort", "error") == [50, 0, 0, 0]


async def test_every_request_counts_once(client: Client) -> None:
    before = await client.idle()
    full = [await client.ask(COMPLETIONS, {"prompt": FRANCE, "max_tokens": 8, **force(DEF)}) for _ in range(5)]
    ended = [await client.stream(CHAT, {"messages": user("Hi"), **force(EOS)}) for _ in range(2)]
    for _ in range(5):
        await client.leave_after(2, COMPLETIONS, {"prompt": FRANCE, **ENDLESS})
    for wrong in ({"temperature": -1}, {"prompt": [-1]}, {"prompt": ""}, {"max_tokens": 0}, {"logit_bias": {"x": 1}}):
        await client.refused(COMPLETIONS, {"prompt": FRANCE, **wrong})
    assert (await client.post(COMPLETIONS, {"model": "other", "prompt": FRANCE}))[0] == 404
    left = {"handler": COMPLETIONS, "status": "499"}
    expected = 5 + before.value("ringpost:http_requests_total", **left)
    await client.until(lambda scrape: scrape.value("ringpost:http_requests_total", **left) == expected)
    after = await client.idle()

    growth = Growth(before, after)
    assert growth.finished("length", "stop", "abort", "error") == [5, 2, 5, 0]
    for histogram in ("e2e_request_latency_seconds", "request_generation_tokens", "request_prompt_tokens"):
        assert growth(f"ringpost:{histogram}_count") == 12
    for handler, status, count in ((COMPLETIONS, "200", 5), (CHAT, "200", 2), (COMPLETIONS, "400", 5), (COMPLETIONS, "404", 1)):
        assert growth("ringpost:http_requests_total", handler=handler, status=status) == count
    told = sum(answer.usage["prompt_tokens"] for answer in full if answer.usage)
    assert growth("ringpost:request_prompt_tokens_sum") == growth("ringpost:prompt_tokens_total") > told
    told = sum(answer.completion_tokens for answer in full) + len(ended)
    assert growth("ringpost:request_generation_tokens_sum") == growth("ringpost:generation_tokens_total") >= told + 5 * 2
    later = after.counters()
    assert {name for name, value in before.counters().items() if later[name] < value} == set()
