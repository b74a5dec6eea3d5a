"""`ringpost bench growth`: which steps it counts, what it has room for, its report, its tables and plots, and its mistakes."""

import asyncio
import json
import re
from typing import Any, cast

import msgspec
import pytest
from schedulers import add_request, build_scheduler, complete, plan_of

from ringpost.actors import bench_engine as command
from ringpost.actors.benchmarks import engine_load
from ringpost.actors.benchmarks.decode_room import BATCH_CONTEXT, Room
from ringpost.actors.benchmarks.engine_load import Load
from ringpost.actors.benchmarks.engine_report import GrowthReport, GrowthSettings
from ringpost.actors.benchmarks.engine_tables import print_growth_report
from ringpost.actors.benchmarks.launch import BenchmarkError
from ringpost.actors.cli import main
from ringpost.actors.config import engine_config
from ringpost.actors.frontend.async_llm import AsyncLLM
from ringpost.actors.frontend.outputs import CompletionOutput, RequestOutput
from ringpost.ipc.messages.config import Checkpoint, EngineConfig


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(["bench", "growth", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def settings_of(**changed: Any) -> GrowthSettings:
    plain: dict[str, Any] = {"batch_sizes": [1], "contexts": [128], "output_len": 32, "repeat": 1}
    return GrowthSettings(**({"model": "my[bold]", "options": {}} | plain | changed))


def test_both_series_are_measured(no_leaks: None, tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    lists = {"batch_sizes": [1, 6], "contexts": [40, 20, 300]}
    given = ["--batch-sizes", "1", "6", "--contexts", "40", "20", "300", "--output-len", "4", "--repeat", "2"]
    code, out, err = bench(capsys, "--model", tiny, *given, "--max-num-batched-tokens", "64", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out).keys() == set(GrowthReport.__struct_fields__)
    report = msgspec.json.decode(out, type=GrowthReport)
    options = {"max_num_batched_tokens": "64"}
    assert report.settings == settings_of(model=tiny, options=options, **lists, output_len=4, repeat=2)
    assert report.machine["device"] == "cpu"
    assert [(one.batch_size, one.context) for one in report.batch_sizes] == [(1, BATCH_CONTEXT), (6, BATCH_CONTEXT)]
    assert [(one.batch_size, one.context) for one in report.contexts] == [(1, 40), (1, 20), (1, 300)]
    for series in (report.batch_sizes, report.contexts):
        for one in series:
            assert 0 < one.step.p50 <= one.step.p99 <= one.step.longest
            assert one.tokens_per_second == pytest.approx(one.batch_size / one.step.p50)
            assert one.ratio == pytest.approx(one.step.p50 / series[0].step.p50)


@pytest.mark.parametrize(
    "options",
    [{}, {"async_scheduling": True, "long_prefill_token_threshold": 8}],
    ids=["plain", "async"],
)
@pytest.mark.asyncio
async def test_each_request_sees_all_steps(no_leaks: None, tiny: str, options: dict[str, Any]) -> None:
    async with AsyncLLM.from_engine_args(model=tiny, max_num_batched_tokens=48, **options) as engine:
        room, load = Room(engine.config, 10_000), Load(engine)
        for count, context in ((1, 100), (5, 100), (20, 30)):
            found = await load.decode_steps(count, context, 6, max_tokens=room.max_tokens(count, context, 6))
            assert len(found) == count * 6
        assert (await engine.describe()).running == 0


class Timetable:
    """An engine whose outputs come by a timetable: a step a row, with its seconds, and by request how many tokens it gives."""

    def __init__(self, *steps: tuple[float, dict[int, int]]) -> None:
        self.config = EngineConfig(checkpoint=Checkpoint(vocab_size=1000))
        self.calls: list[str] = []
        self.prompts: list[list[int]] = []
        self.now = 100.0
        self._steps = [(seconds, dict(tokens)) for seconds, tokens in steps]
        self._left = [sum(request in tokens for _, tokens in steps) for request in range(9)]  # outputs to come
        self._news = asyncio.Condition()

    async def pause_generation(self, mode: str) -> None:
        self.calls.append(mode)

    async def resume_generation(self) -> None:
        self.calls.append("resume")
        self.now += self._steps[0][0]

    async def add_request(self, request_id: None, prompt: list[int], params: Any) -> "Seat":
        self.calls.append("add")
        self.prompts.append(prompt)
        return Seat(self, len(self.prompts) - 1)

    async def take(self, request: int) -> RequestOutput:
        """The request's next output, once its step is there. The next step begins when everybody has taken this one's."""
        async with self._news:
            await self._news.wait_for(lambda: request in self._due())
            tokens = self._steps[0][1].pop(request)
            self._left[request] -= 1
            last = self._left[request] == 0
            self._news.notify_all()
        answer = CompletionOutput(index=0, text="", token_ids=[7] * tokens, finish_reason="length" if last else None)
        return RequestOutput(request_id="", prompt=None, prompt_token_ids=[], outputs=[answer], finished=last)

    def _due(self) -> dict[int, int]:
        if not self._steps[0][1] and len(self._steps) > 1:
            del self._steps[0]
            self.now += self._steps[0][0]
        return self._steps[0][1]


class Seat:
    """Where one request gets its outputs."""

    def __init__(self, timetable: Timetable, request: int) -> None:
        self._timetable, self._request = timetable, request

    async def get(self) -> RequestOutput:
        return await self._timetable.take(self._request)

    def close(self) -> None:
        self._timetable.calls.append("close")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[Timetable]:
    """Holds the timetable that says what time it is."""
    tables: list[Timetable] = []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return tables[0].now

    monkeypatch.setattr(engine_load, "time", Clock)
    return tables


async def decode(clock: list[Timetable], timetable: Timetable, count: int, steps: int) -> list[float]:
    clock.append(timetable)
    return await Load(cast("AsyncLLM", timetable)).decode_steps(count, 50, steps, max_tokens=99)


@pytest.mark.asyncio
async def test_steps_with_prompts_are_not_counted(clock: list[Timetable]) -> None:
    prompts = [(10.0, {0: 1}), (20.0, {0: 1, 1: 1}), (30.0, {0: 1, 1: 1, 2: 1})]
    timetable = Timetable(*prompts, *[(float(seconds), {0: 1, 1: 1, 2: 1}) for seconds in (1, 2, 3, 4, 5, 6)])
    found = await decode(clock, timetable, 3, 4)
    assert len(found) == 3 * 4
    assert set(found) <= {1, 2, 3, 4, 5}, "the last prompt was computed in a step of 30"
    assert [found.count(seconds) for seconds in (2, 3, 4)] == [3, 3, 3]
    assert timetable.calls == ["keep", "add", "add", "add", "resume", "close", "close", "close"]
    assert len({tuple(prompt) for prompt in timetable.prompts}) == 3
    assert {len(prompt) for prompt in timetable.prompts} == {50}


@pytest.mark.asyncio
async def test_steps_of_a_smaller_batch_are_not_counted(clock: list[Timetable]) -> None:
    steps = [(10.0, {0: 1, 1: 1}), *[(1.0, {0: 1, 1: 1})] * 4, *[(9.0, {1: 1})] * 5]
    found = await decode(clock, Timetable(*steps), 2, 9)
    assert set(found) == {1}
    assert 6 <= len(found) <= 8


@pytest.mark.asyncio
async def test_an_output_may_hold_several_steps(clock: list[Timetable]) -> None:
    found = await decode(clock, Timetable((10.0, {0: 1}), (6.0, {0: 3}), (1.0, {0: 1}), (1.0, {0: 1})), 1, 4)
    assert found == [2, 2, 2, 1]


@pytest.mark.asyncio
async def test_without_a_step_there_is_no_figure(clock: list[Timetable]) -> None:
    with pytest.raises(BenchmarkError, match="2 requests of 50 tokens never decoded together"):
        await decode(clock, Timetable((1.0, {0: 1}), (1.0, {0: 1}), (1.0, {1: 1})), 2, 4)


def room_of(num_blocks: int = 100_000, max_model_len: int = 8192, **options: int) -> Room:
    config = engine_config(**options)
    return Room(msgspec.structs.replace(config, checkpoint=Checkpoint(max_model_len=max_model_len)), num_blocks)


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("threshold", [0, 5])
@pytest.mark.parametrize(("count", "context", "budget"), [(1, 50, 16), (2, 17, 16), (8, 33, 8), (8, 33, 64), (30, 5, 40)])
def test_there_is_just_enough_room(count: int, context: int, budget: int, threshold: int, in_flight: int) -> None:
    """The scheduler has all requests at work, without preemption, in all the steps that are to be measured."""
    options = {"max_num_seqs": 30, "max_num_batched_tokens": budget, "long_prefill_token_threshold": threshold, "block_size": 4}
    blocks = next(many for many in range(1, 9999) if room_of(many, **options).obstacle(count, context, 7) is None)
    tokens = room_of(**options).max_tokens(count, context, 7)
    scheduler = build_scheduler(
        seqs=30, budget=budget, long_prefill=threshold, blocks=blocks, max_model_len=context + tokens, steps_in_flight=in_flight
    )
    for number in range(count):
        scheduler.add(add_request(number, context, tokens))
    got, together = dict.fromkeys(range(count), 0), 0
    while scheduler.has_work:
        plans = [plan_of(scheduler)]
        while (plan := scheduler.schedule()) is not None:
            plans.append(plan)
        for plan in plans:
            if all(got.values()) and max(got.values()) < tokens:
                assert plan.counts == [1] * count
                together += 1
            for delta in complete(scheduler, plan):
                got[delta.request] += len(delta.tokens)
    assert scheduler.stats().preemptions == 0
    assert together >= 7 + 1


@pytest.mark.parametrize(
    ("room", "changed", "message"),
    [
        (
            room_of(max_num_seqs=16),
            {"batch_sizes": [16, 17]},
            "batch_sizes must be at most 16 with output_len 32 and max_num_seqs 16, got 17",
        ),
        (
            room_of(max_num_batched_tokens=9),
            {"batch_sizes": [10**30]},
            "batch_sizes must be at most 9 with output_len 32 and max_num_batched_tokens 9, got 1000000",
        ),
        (
            room_of(num_blocks=45),
            {"batch_sizes": [4]},
            "batch_sizes must be at most 3 with output_len 32 and a KV cache of 45 blocks of 16 tokens, got 4",
        ),
        (
            room_of(),
            {"contexts": [8157, 8158]},
            "contexts must be at most 8157 with output_len 32 and max_model_len 8192, got 8158",
        ),
        (
            room_of(num_blocks=20),
            {"contexts": [10**30]},
            "contexts must be at most 285 with output_len 32 and a KV cache of 20 blocks of 16 tokens, got 1000000",
        ),
        (
            room_of(max_model_len=160),
            {"contexts": [1]},
            "batch_sizes must be left out: none fits with output_len 32 and max_model_len 160, got 1",
        ),
    ],
)
def test_what_does_not_fit_is_refused(room: Room, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        room.check(settings_of(**changed))


def test_it_is_refused_before_anything_is_measured(
    no_leaks: None, tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(Load, "decode_steps")
    code, out, err = bench(capsys, "--model", tiny, "--batch-sizes", "1", "--contexts", "20", "500")
    assert (code, out) == (2, "")
    assert err == "ringpost bench: contexts must be at most 477 with output_len 32 and max_model_len 512, got 500\n"
    code, out, err = bench(capsys, "--model", tiny, "--batch-sizes", "30", "--num-blocks-override", "100")
    assert (code, out) == (2, "")
    assert "batch_sizes must be at most 8 with output_len 32 and a KV cache of 100 blocks of 16 tokens, got 30\n" in err


REPORT = {
    "benchmark": "growth",
    "machine": {"cpu_count": 2},
    "settings": msgspec.to_builtins(settings_of(batch_sizes=[1, 64], contexts=[128, 8000], repeat=3)),
    "batch_sizes": [
        {"batch_size": 1, "context": 128, "step": {"p50": 0.01, "p99": 1, "longest": 1}, "tokens_per_second": 100, "ratio": 1},
        {
            "batch_size": 64,
            "context": 128,
            "step": {"p50": 0.0254, "p99": 1, "longest": 1},
            "tokens_per_second": 2519.7,
            "ratio": 2.54,
        },
    ],
    "contexts": [
        {
            "batch_size": 1,
            "context": 128,
            "step": {"p50": 0.011, "p99": 1, "longest": 1},
            "tokens_per_second": 90.9,
            "ratio": 1,
        },
        {
            "batch_size": 1,
            "context": 8000,
            "step": {"p50": 1.5, "p99": 2, "longest": 2},
            "tokens_per_second": 0.7,
            "ratio": 136.4,
        },
    ],
}

PLOTS = """
```mermaid
xychart-beta
    title "A decode step of requests with a context of 128 tokens"
    x-axis "requests at once" ["1", "64"]
    y-axis "ms" 0 --> 26
    line [10.00, 25.40]
```

```mermaid
xychart-beta
    title "A decode step of one request"
    x-axis "tokens of context" ["128", "8000"]
    y-axis "ms" 0 --> 1500
    line [11.00, 1500.00]
```
"""


def test_tables_and_plots_show_figures(capsys: pytest.CaptureFixture[str]) -> None:
    report = msgspec.convert(REPORT, GrowthReport)
    print_growth_report(report)
    out = capsys.readouterr().out
    assert "Model my[bold].\n" in out
    for row in (r"1 │ +10.00 │ +100.0 │ +1.00", r"64 │ +25.40 │ +2,519.7 │ +2.54", r"8,000 │ +1,500.00 │ +0.7 │ +136.40"):
        assert re.search(rf"│ +{row} │\n", out)
    assert "3 x 32 steps of each batch" in out
    assert "mermaid" not in out
    print_growth_report(report, plots=True)
    assert capsys.readouterr().out == out + PLOTS


def test_what_is_measured_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given: list[GrowthSettings] = []

    async def measure(settings: GrowthSettings, done: object) -> GrowthReport:
        given.append(settings)
        return msgspec.convert(REPORT, GrowthReport)

    monkeypatch.setattr(command, "run_growth_benchmark", measure)
    code, out, _ = bench(capsys, "--mermaid")
    assert (code, out.endswith(PLOTS)) == (0, True)
    batch_sizes, contexts = [1, 2, 4, 8, 16, 32, 64, 128], [128, 256, 512, 1024, 2048, 4096, 8000]
    assert given == [settings_of(model="smollm2", batch_sizes=batch_sizes, contexts=contexts, output_len=32, repeat=3)]
    room_of(max_model_len=8192, num_blocks=3000).check(given[0])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--batch-sizes"], "argument --batch-sizes: expected at least one argument"),
        (["--batch-sizes", "4", "0"], "batch_sizes must be an integer of at least 1, got 0"),
        (["--batch-sizes", "4", "many"], "argument --batch-sizes: invalid int value: 'many'"),
        (["--contexts"], "argument --contexts: expected at least one argument"),
        (["--contexts", "0"], "contexts must be an integer of at least 1, got 0"),
        (["--contexts", "1.5"], "argument --contexts: invalid int value: '1.5'"),
        (["--output-len", "0"], "output_len must be an integer of at least 1, got 0"),
        (["--repeat", "0"], "repeat must be an integer of at least 1, got 0"),
        (["--json", "--mermaid"], "mermaid must be left out with json"),
        (["--single-process"], "single_process must be false"),
        (["--model", "/no/such/model"], "model '/no/such/model' does not exist"),
    ],
)
def test_a_mistake_is_one_line(no_leaks: None, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str) -> None:
    code, out, err = bench(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert named in err
