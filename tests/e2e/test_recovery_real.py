"""Deaths under streams of the demo model: the tokens are those of a run without any. With -s it tells what the deaths cost."""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from fault_driver import BOTH, CORE, WORKER, Blow, FaultDriver, Stream, follow, random_blows
from process_tree import command_line
from prompts import fidelity_prompts

from ringpost import AsyncLLM, SamplingParams

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

REDUCED = [Blow(8, (WORKER,)), Blow(8, (CORE,))]
FULL = [Blow(200, (WORKER,)), Blow(200, (CORE,)), Blow(200, (WORKER,), signal.SIGSTOP), Blow(200, BOTH)]
LONG = [pytest.mark.long, pytest.mark.timeout(1200)]
RUNS = [
    pytest.param(4, 12, REDUCED, id="reduced"),
    pytest.param(32, 100, FULL, id="each way", marks=LONG),
    pytest.param(16, 100, random_blows(5, 20, 100), id="random", marks=LONG),
]
HANG_TIMEOUT = 10.0  # seconds; far above what a step takes


def questions(count: int, max_tokens: int) -> list[tuple[list[int], SamplingParams]]:
    """Greedy and seeded ones by turns, in pairs of the same prompt."""
    prompts = fidelity_prompts(16)
    params = [SamplingParams(temperature=seed % 2, seed=seed, max_tokens=max_tokens, ignore_eos=True) for seed in range(count)]
    return [(prompts[number // 2 % 16], params[number]) for number in range(count)]


def write_table(driver: FaultDriver, streams: Sequence[Stream], newcomers: Sequence[float], facts: str) -> None:
    """A line for each blow: what, the longest pause of a stream, and how long a request that came then waited, in seconds."""
    moments = {struck.blow: struck for struck in driver.log}
    lines = [f"{'struck':>16} {'signal':>8} {'longest pause':>14} {'new request':>12}"]
    for (number, struck), waited in zip(moments.items(), newcomers, strict=True):
        actors = "+".join(other.actor for other in driver.log if other.blow == number)
        pause = max(stream.pause_at(struck.time) for stream in streams)
        lines.append(f"{actors:>16} {struck.what:>8} {pause:>14.2f} {waited:>12.2f}")
    sys.stdout.write("\n".join(["", *lines, facts, ""]))


def differences(found: Sequence[Stream], wanted: Sequence[Stream]) -> tuple[int, int]:
    """How many tokens are missing, and how many are other ones."""
    lost = sum(len(right.tokens) - len(stream.tokens) for stream, right in zip(found, wanted, strict=True))
    pairs = [
        pair for stream, right in zip(found, wanted, strict=True) for pair in zip(stream.tokens, right.tokens, strict=False)
    ]
    return lost, sum(token != right for token, right in pairs)


@pytest.mark.parametrize(("count", "max_tokens", "blows"), RUNS)
async def test_streams_survive(
    no_leaks: None, smollm2: str, tmp_path: Path, count: int, max_tokens: int, blows: list[Blow]
) -> None:
    asked = questions(count, max_tokens)
    options = {"dtype": "float32", "max_model_len": 512, "hang_timeout": HANG_TIMEOUT, "postmortem_dir": str(tmp_path)}
    waited: dict[int, float] = {}  # by blow: how long a request that came with it had to wait for its token

    async def ask_anew(blow: int) -> None:
        began = time.monotonic()
        await follow(engine, asked[0][0], SamplingParams(temperature=0, max_tokens=1))
        waited[blow] = time.monotonic() - began

    async with AsyncLLM.from_engine_args(model=smollm2, **options) as engine:
        undisturbed = await asyncio.gather(*(follow(engine, *question) for question in asked))
        streams: list[Stream] = []
        async with asyncio.TaskGroup() as tasks:
            with FaultDriver(engine, blows, on_blow=lambda blow: [tasks.create_task(ask_anew(blow))]) as driver:
                while driver.left:
                    streams += await asyncio.gather(*(follow(engine, *question, driver) for question in asked))
        pids = {struck.pid for struck in driver.log} | {process.pid for process in engine.process_table()[1:]}
        assert engine.stats.finished["error"] == 0
        await engine.check_health()
    lost, changed = differences(streams, undisturbed * (len(streams) // count))
    orphans = [pid for pid in pids if "--actor" in command_line(pid)]
    facts = f"{len(streams)} streams, {lost} tokens lost, {changed} tokens changed, {len(orphans)} orphans"
    write_table(driver, streams, [waited[blow] for blow in sorted(waited)], facts)
    assert (lost, changed, orphans) == (0, 0, [])
    assert len(waited) == len(blows)
