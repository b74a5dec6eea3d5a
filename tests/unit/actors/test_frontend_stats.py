"""Statistics of the frontend: each accepted request counts once, whatever ends it, and times are what a consumer saw."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_requests import register
from mailboxes import make_lanes, make_ring
from tiny_checkpoint import write_tiny_llama

from ringpost.actors.base import TaskHost
from ringpost.actors.config import engine_config, resolve_config
from ringpost.actors.errors import EngineDeadError, EngineGenerateError
from ringpost.actors.frontend import live_request, output_processor
from ringpost.actors.frontend.async_llm import AsyncLLM
from ringpost.actors.frontend.engine_client import EngineClient
from ringpost.actors.frontend.live_request import LiveRequest
from ringpost.actors.frontend.output_processor import OutputProcessor
from ringpost.actors.frontend.renderer import Renderer
from ringpost.actors.frontend.stats import FrontendStats, Histogram
from ringpost.actors.status import StatusBlock
from ringpost.actors.watch import EngineWatch
from ringpost.ipc.attach import attach_receiver, attach_sender
from ringpost.ipc.mailbox import Receiver, Sender
from ringpost.ipc.messages.config import EngineConfig
from ringpost.ipc.messages.errors import ParameterError
from ringpost.ipc.messages.failure import Failure
from ringpost.ipc.messages.outputs import OutputMessage, StepOutputs, TokenDelta
from ringpost.ipc.messages.requests import Abort, AddRequest, RequestMessage
from ringpost.ipc.messages.sampling import SamplingParams

PROMPT = [5, 6, 7]

# --strict holds AsyncLLM to the protocol here, so that a server can do with the protocol alone.
ENGINE: type[EngineClient] = AsyncLLM


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 5))))
def test_a_histogram_counts_up_to_and_including_each_bound(observations: list[tuple[float, int]]) -> None:
    histogram = Histogram((0.5, 1.0, 2.0, 50.0))
    for value, count in observations:
        histogram.observe(value, count)
    for index, bound in enumerate(histogram.bounds):
        assert sum(histogram.counts[: index + 1]) == sum(count for value, count in observations if value <= bound)
    assert histogram.count == sum(count for _, count in observations)
    assert histogram.sum == pytest.approx(sum(value * count for value, count in observations))


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.counts == [1, 2, 1]


def test_bounds_rise_and_the_reasons_are_there_from_the_start() -> None:
    stats = FrontendStats()
    assert stats.finished == {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0, "interrupt": 0}
    for histogram in (value for value in vars(stats).values() if isinstance(value, Histogram)):
        assert list(histogram.bounds) == sorted(set(histogram.bounds))


class Requests:
    """An output processor, and requests that are told apart by number."""

    def __init__(self) -> None:
        self.outputs = OutputProcessor()
        self.stats = self.outputs.stats
        self.lives: dict[int, LiveRequest] = {}

    def add(self, request: int, *, accepted: bool = True) -> None:
        live, _ = register(self.outputs, request, SamplingParams())
        self.lives[request] = live
        if accepted:
            assert self.outputs.tokenized(live, PROMPT)

    def step(self, request: int, position: int, count: int, reason: Any = None, scheduled: float = 0.0) -> None:
        self.outputs.process([TokenDelta(request, position, [9] * count, reason, scheduled=scheduled)])


class Clock:
    """Stands in for the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1e9 + self.now


def test_times_are_what_the_consumer_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in (output_processor, live_request):
        monkeypatch.setattr(module, "time", clock)
    requests = Requests()
    clock.now = 100.0
    requests.add(1)
    clock.now = 103.0
    requests.step(1, 0, 2, scheduled=101.5)
    clock.now = 107.0
    requests.step(1, 2, 4)
    clock.now = 108.0
    requests.step(1, 6, 1, "length", scheduled=107.5)
    stats = requests.stats
    assert (stats.request_queue_time.count, stats.request_queue_time.sum) == (1, 1.5)
    assert (stats.time_to_first_token.count, stats.time_to_first_token.sum) == (1, 3.0)
    gaps = Histogram(stats.inter_token_latency.bounds)
    for value, count in ((0.0, 1), (1.0, 4), (1.0, 1)):  # the first output's second token came with the first
        gaps.observe(value, count)
    assert (stats.inter_token_latency.counts, stats.inter_token_latency.sum) == (gaps.counts, gaps.sum)
    assert (stats.e2e_request_latency.count, stats.e2e_request_latency.sum) == (1, 8.0)
    assert (stats.request_prompt_tokens.sum, stats.request_generation_tokens.sum) == (3, 7)
    assert (stats.prompt_tokens, stats.generation_tokens) == (3, 7)


def test_prompt_tokens_count_with_the_first_token() -> None:
    requests = Requests()
    for request in (1, 2):
        requests.add(request)
    requests.outputs.abort(requests.lives[1])  # in the queue
    assert requests.stats.prompt_tokens == 0
    requests.step(2, 0, 1)
    assert requests.stats.prompt_tokens == 3
    requests.step(2, 1, 1)
    assert requests.stats.prompt_tokens == 3
    assert requests.stats.finished["abort"] == 1


ACTIONS = ["tokens", "stop", "length", "abort", "discard", "fail", "refuse", "lose a token", "engine dies"]
EXPECTED = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "discard": "abort",
    "fail": "error",
    "lose a token": "error",
    "engine dies": "error",
}


class Model:
    """Requests, and what their statistics should be."""

    def __init__(self) -> None:
        self.requests = Requests()
        self.lengths: dict[int, int] = {}  # tokens of each live request
        self.accepted: set[int] = set()
        self.last = 0
        self.finished = {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0, "interrupt": 0}
        self.tokens = 0
        self.started = 0

    def add(self, *, accepted: bool) -> None:
        self.last += 1
        self.requests.add(self.last, accepted=accepted)
        self.lengths[self.last] = 0
        self.accepted |= {self.last} if accepted else set()

    def act(self, request: int, action: str, count: int) -> None:
        """Do something to a request, live or not."""
        outputs, length = self.requests.outputs, self.lengths.get(request, 0)
        if action in ("tokens", "stop", "length"):
            self.requests.step(request, length, count, None if action == "tokens" else action)
            self._received(request, count)
        elif action == "lose a token":
            self.requests.step(request, length + 1, count)
        elif action == "abort":
            if request in self.requests.lives:
                outputs.abort(self.requests.lives[request])
        elif action == "discard":
            if request in self.requests.lives:
                outputs.abandon(self.requests.lives[request])
        elif action == "engine dies":
            outputs.fail_all(EngineDeadError("dead"))
        else:
            outputs.fail(request, ValueError("no") if action == "refuse" else EngineGenerateError("no"))
        for ended in list(self.lengths) if action == "engine dies" else [request]:
            self._ended(ended, action)

    def _received(self, request: int, count: int) -> None:
        if request in self.lengths and count:
            self.started += not self.lengths[request]
            self.lengths[request] += count
            self.tokens += count

    def _ended(self, request: int, action: str) -> None:
        length = None if action == "tokens" else self.lengths.pop(request, None)
        # A refusal after tokens is a failure like any other.
        reason = "error" if action == "refuse" and length else EXPECTED.get(action)
        if length is not None and request in self.accepted and reason is not None:
            self.finished[reason] += 1

    def check(self) -> None:
        stats = self.requests.stats
        assert stats.finished == self.finished
        assert stats.generation_tokens == self.tokens
        assert stats.time_to_first_token.count == self.started
        assert stats.inter_token_latency.count == self.tokens - self.started
        for histogram in (stats.e2e_request_latency, stats.request_prompt_tokens, stats.request_generation_tokens):
            assert histogram.count == sum(self.finished.values())


STEPS = st.tuples(st.integers(0, 4), st.sampled_from([*ACTIONS, "add", "add unaccepted"]), st.integers(0, 3))


@given(st.lists(STEPS, max_size=40))
def test_each_accepted_request_counts_once(steps: list[tuple[int, str, int]]) -> None:
    model = Model()
    for _ in range(2):
        model.add(accepted=True)
    for back, action, count in steps:
        if action.startswith("add"):
            model.add(accepted=action == "add")
        else:
            model.act(model.last - back, action, count)
        model.check()


class PaperCore:
    """The core's ends of an engine's mailboxes, in the hands of a test."""

    def __init__(self) -> None:
        self.handles = make_lanes(RequestMessage), make_ring()
        self.requests: Receiver[RequestMessage] = attach_receiver(self.handles[0].ordered.duplicate(), RequestMessage)
        self.outputs: Sender[OutputMessage] = attach_sender(self.handles[1].duplicate(), OutputMessage)
        self.death: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        self.down = None
        # What the engine asks of its supervisor.
        self.topology = SimpleNamespace(requests=[[self.handles[0]]], outputs=[[self.handles[1]]])

    def ready_of(self, _: str) -> SimpleNamespace:
        return SimpleNamespace(num_blocks=64)

    async def run(self, _: object) -> Failure:
        return await self.death

    async def next_request(self) -> int:
        """The number of the next request that arrives."""
        while not isinstance(message := await self.requests.receive(), AddRequest):
            assert isinstance(message, Abort)
        return message.request

    def answer(self, request: int, position: int, tokens: list[int], reason: Any = None) -> None:
        self.outputs.send_nowait(StepOutputs(1, [TokenDelta(request, position, tokens, reason)]))

    def refuse(self, request: int, kind: str) -> None:
        self.outputs.send_nowait(Failure("core0", 1, kind, "no", request=request))

    def close(self) -> None:
        self.requests.close()
        self.outputs.close()
        for handle in self.handles:
            handle.close()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    return resolve_config(engine_config(model=str(write_tiny_llama(tmp_path_factory.mktemp("tiny"))), max_model_len=256))


@pytest.fixture(scope="module")
def renderer(config: EngineConfig) -> Renderer:
    return Renderer(config.checkpoint)


@asynccontextmanager
async def serving(config: EngineConfig, renderer: Renderer) -> AsyncIterator[tuple[AsyncLLM, PaperCore]]:
    """An engine that serves, whose core is the test."""
    core, engine = PaperCore(), AsyncLLM(config)
    engine._renderer = renderer
    engine._status = StatusBlock(lambda _: None, actor="frontend0", kind="frontend", supervisor=0, epoch=1)
    engine._watch = EngineWatch([], config.runtime.hang_timeout)
    engine._host = TaskHost(engine._serve(config, core), "engine")  # type: ignore[arg-type]
    try:
        await engine.start()
        yield engine, core
    finally:
        await engine.shutdown()
        core.close()


Way = Callable[[AsyncLLM, PaperCore], Coroutine[Any, Any, None]]


async def _ends_by_itself(engine: AsyncLLM, core: PaperCore) -> None:
    collector = await engine.add_request(None, PROMPT)
    core.answer(await core.next_request(), 0, [9, 9], "stop")
    assert (await collector.get()).finished
    collector.close()  # finished already


async def _closed_before_its_end(engine: AsyncLLM, core: PaperCore) -> None:
    collector = await engine.add_request(None, PROMPT)
    collector.close()
    collector.close()
    core.answer(await core.next_request(), 0, [9], "length")  # too late


async def _generator_left(engine: AsyncLLM, core: PaperCore) -> None:
    outputs = engine.generate(PROMPT)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(anext(outputs))
        core.answer(await core.next_request(), 0, [9])
    assert not first.result().finished
    await outputs.aclose()
    await outputs.aclose()


async def _consumer_cancelled(engine: AsyncLLM, core: PaperCore) -> None:
    consumer = asyncio.ensure_future(anext(engine.generate(PROMPT)))
    await core.next_request()
    consumer.cancel()
    await asyncio.wait([consumer])
    assert consumer.cancelled()


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def _aborted(engine: AsyncLLM, core: PaperCore) -> None:
    collector = await engine.add_request("chat-7", PROMPT)
    await core.next_request()
    await engine.abort("chat-7")
    await engine.abort("chat-7")
    assert (await collector.get()).outputs[0].finish_reason == "abort"
    collector.close()


async def _shut_down(engine: AsyncLLM, core: PaperCore) -> None:
    collector = await engine.add_request(None, PROMPT)
    await engine.shutdown()
    assert (await collector.get()).outputs[0].finish_reason == "abort"
    collector.close()


async def _failed_in_the_core(engine: AsyncLLM, core: PaperCore) -> None:
    collector = await engine.add_request(None, PROMPT)
    core.refuse(await core.next_request(), "FloatingPointError")
    with pytest.raises(EngineGenerateError):
        await collector.get()
    collector.close()


async def _failed_in_the_frontend(engine: AsyncLLM, core: PaperCore) -> None:
    collector = await engine.add_request(None, PROMPT)
    core.answer(await core.next_request(), 3, [9])
    with pytest.raises(EngineGenerateError, match="token 3 is lost"):
        await collector.get()
    collector.close()


async def _could_not_be_sent(engine: AsyncLLM, core: PaperCore) -> None:
    async def broken(message: object) -> None:
        raise OSError("no")

    engine._client.tell = broken  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no"):
        await engine.add_request(None, PROMPT)


async def _engine_died(engine: AsyncLLM, core: PaperCore) -> None:
    collector = await engine.add_request(None, PROMPT)
    core.death.set_result(Failure("worker0.0", 1, "MemoryError", "too large"))
    with pytest.raises(EngineDeadError, match="too large"):
        await collector.get()
    collector.close()


async def _refused_by_the_core(engine: AsyncLLM, core: PaperCore) -> None:
    for kind in ("RequestTooLong", "DoesNotFit"):
        collector = await engine.add_request(None, PROMPT)
        core.refuse(await core.next_request(), kind)
        with pytest.raises(ParameterError, match="no") as caught:
            await collector.get()
        assert caught.value.parameter == "prompt"
        collector.close()


async def _refused_at_the_edge(engine: AsyncLLM, core: PaperCore) -> None:
    for prompt in ([-1], [5] * 256, "a\n" * 255):  # the last one shows its length only when it is tokenised
        with pytest.raises(ValueError, match="prompt"):
            await engine.add_request(None, prompt)
    assert engine.num_unfinished_requests == 0


async def _cancelled_before_it_was_accepted(engine: AsyncLLM, core: PaperCore) -> None:
    async def endless(*_: object) -> list[int]:
        await asyncio.Event().wait()
        raise AssertionError

    engine._inputs.encode = endless  # type: ignore[assignment]
    adding = asyncio.ensure_future(engine.add_request(None, "hi"))
    await _turns()
    assert engine.num_unfinished_requests == 1
    adding.cancel()
    await asyncio.wait([adding])
    assert engine.num_unfinished_requests == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (_ends_by_itself, "stop"),
        (_closed_before_its_end, "abort"),
        (_generator_left, "abort"),
        (_consumer_cancelled, "abort"),
        (_aborted, "abort"),
        (_shut_down, "abort"),
        (_failed_in_the_core, "error"),
        (_failed_in_the_frontend, "error"),
        (_could_not_be_sent, "error"),
        (_engine_died, "error"),
        (_refused_by_the_core, None),
        (_refused_at_the_edge, None),
        (_cancelled_before_it_was_accepted, None),
    ],
)
async def test_a_request_counts_once(
    no_leaks: None, config: EngineConfig, renderer: Renderer, way: Way, reason: str | None
) -> None:
    expected = {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0, "interrupt": 0} | (
        {} if reason is None else {reason: 1}
    )
    async with serving(config, renderer) as (engine, core):
        await way(engine, core)
        assert engine.stats.finished == expected
    assert engine.stats.finished == expected
    assert engine.stats.e2e_request_latency.count == sum(expected.values())


@pytest.mark.asyncio
async def test_cancelled_while_it_waits_for_room(no_leaks: None, config: EngineConfig, renderer: Renderer) -> None:
    async with serving(config, renderer) as (engine, _):
        adding = [asyncio.ensure_future(engine.add_request(None, [200] * 200)) for _ in range(20)]
        await _turns()
        waiting = [task for task in adding if not task.done()]
        assert 0 < len(waiting) < 20
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert engine.stats.finished["abort"] == len(waiting) == sum(engine.stats.finished.values())
    assert engine.stats.finished["abort"] == 20
