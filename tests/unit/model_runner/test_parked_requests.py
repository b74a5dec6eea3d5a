"""The scheduler and the runner together: a request that was parked midway gets the tokens that it gets undisturbed."""

from collections.abc import Callable

import pytest
from tiny_checkpoint import write_tiny_llama

from ringpost.ipc.messages.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig, SchedulerConfig
from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.model_runner.checkpoint.resolve import resolve_checkpoint
from ringpost.model_runner.runner import ModelRunner
from ringpost.sched.integrity import check_integrity
from ringpost.sched.scheduler import Scheduler

MAX_LEN = 96
NUM_BLOCKS = 12  # of 16 positions
TOKENS = 40
KINDS = {
    1: SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True),
    2: SamplingParams(max_tokens=TOKENS, seed=1234, top_p=0.95, frequency_penalty=0.7, repetition_penalty=1.4, ignore_eos=True),
    3: SamplingParams(
        max_tokens=TOKENS,
        seed=5,
        min_tokens=30,
        logit_bias={7: 5, 9: 5},
        bad_words_token_ids=[[7, 7], [9, 7, 9]],
        ignore_eos=True,
    ),
}
Event = Callable[[Scheduler], None]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    model = ModelConfig(model=str(write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")), max_model_len=MAX_LEN)
    config = EngineConfig(
        model=model,
        cache=CacheConfig(block_size=16),
        scheduler=SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=24),
        parallel=ParallelConfig(num_threads=1),
        checkpoint=resolve_checkpoint(model),
    )
    made = ModelRunner(config=config)
    made.init_cache(NUM_BLOCKS)
    return made


def request(number: int, params: SamplingParams, prompt: int = 13) -> AddRequest:
    return AddRequest(number, str(number), [3 + (number * 31 + index * 7) % 250 for index in range(prompt)], params, 0.0)


def answers(runner: ModelRunner, events: dict[int, Event], steps_in_flight: int = 1) -> dict[int, list[int]]:
    """The tokens of each request; an event takes place while the step with its number is in flight."""
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=24),
        CacheConfig(block_size=16),
        num_blocks=NUM_BLOCKS,
        max_model_len=MAX_LEN,
        steps_in_flight=steps_in_flight,
    )
    for number, params in KINDS.items():
        scheduler.add(request(number, params))
    tokens: dict[int, list[int]] = {}
    results = []
    while scheduler.has_work:
        while (plan := scheduler.schedule()) is not None:
            results.append(runner.execute(plan))
        result = results.pop(0)
        events.pop(result.step, check_integrity)(scheduler)
        for delta in scheduler.update(result).deltas:
            received = tokens.setdefault(delta.request, [])
            assert delta.position == len(received)
            received += delta.tokens
        check_integrity(scheduler)
    assert not events
    return tokens


@pytest.fixture(scope="module")
def undisturbed(runner: ModelRunner) -> dict[int, list[int]]:
    tokens = answers(runner, {})
    assert [len(answer) for answer in tokens.values()] == [TOKENS] * 3
    assert len({tuple(answer) for answer in tokens.values()}) == 3
    return tokens


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("number", KINDS)
def test_with_its_blocks_kept(
    runner: ModelRunner, undisturbed: dict[int, list[int]], number: int, steps_in_flight: int
) -> None:
    def park(scheduler: Scheduler) -> None:
        assert scheduler.park(number)

    def unpark(scheduler: Scheduler) -> None:
        assert scheduler.places.requests[number].num_computed > 13
        assert scheduler.unpark(number)

    events: dict[int, Event] = {10: park, 14: unpark, 16: park, 17: unpark}
    assert answers(runner, events, steps_in_flight) == undisturbed


@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("number", KINDS)
def test_with_its_blocks_taken_away(
    runner: ModelRunner, undisturbed: dict[int, list[int]], number: int, steps_in_flight: int
) -> None:
    """A newcomer needs them; the parked one then waits for room, and computes prompt and output again in chunks."""

    def park(scheduler: Scheduler) -> None:
        assert scheduler.park(number)
        scheduler.add(request(9, SamplingParams(max_tokens=3, temperature=0), prompt=60))

    def unpark(scheduler: Scheduler) -> None:
        assert scheduler.places.requests[number].num_computed == 0
        assert scheduler.unpark(number)

    events: dict[int, Event] = {21: park, 25: unpark}
    tokens = answers(runner, events, steps_in_flight)
    assert len(tokens.pop(9)) == 3
    assert tokens == undisturbed
