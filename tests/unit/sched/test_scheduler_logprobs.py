"""What results tell besides tokens, and what requests that want it do without."""

import msgspec
import pytest
from schedulers import TOKEN, add_request, build_scheduler, entered, plan_of, run_step, run_to_end
from slot_worker import SlotWorker, logprobs_of

from ringpost.ipc.messages.outputs import TokenDelta, TokenLogprobs
from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.results import PromptLogprobs, RowFailure, StepResult
from ringpost.sched.errors import ResultMismatch
from ringpost.sched.scheduler import Scheduler

ENTRY = TokenLogprobs(-1.0, 2)


def wanting(request: AddRequest, **params: object) -> AddRequest:
    return msgspec.structs.replace(request, params=msgspec.structs.replace(request.params, **params))


def test_they_come_with_the_tokens_and_with_the_chunks_of_the_prompt() -> None:
    scheduler = build_scheduler(budget=4)
    request = wanting(add_request(1, 6, max_tokens=2), logprobs=1, prompt_logprobs=2)
    scheduler.add(request)
    worker = SlotWorker(4, 20, 4, {1: request})
    deltas = [scheduler.update(worker.execute(plan_of(scheduler))).deltas for _ in range(3)]
    of_prompt = [logprobs_of(token, position, 2) for position, token in enumerate(request.prompt)]
    told = [logprobs_of(delta.tokens[0], 6 + delta.position, 1) for delta in (deltas[1][0], deltas[2][0])]
    assert deltas == [
        [TokenDelta(1, 0, [], prompt_logprobs=of_prompt[1:5], prompt_start=1)],
        [TokenDelta(1, 0, deltas[1][0].tokens, logprobs=told[:1], prompt_logprobs=of_prompt[5:], prompt_start=5)],
        [TokenDelta(1, 1, deltas[2][0].tokens, "length", logprobs=told[1:])],
    ]


def test_only_those_that_want_them_get_them() -> None:
    scheduler = build_scheduler(budget=20)
    scheduler.add(add_request(1))
    scheduler.add(wanting(add_request(2), logprobs=0))
    plan = plan_of(scheduler)
    deltas = scheduler.update(StepResult(plan.step, [TOKEN, TOKEN], logprobs=[None, ENTRY])).deltas
    assert deltas == [TokenDelta(1, 0, [TOKEN]), TokenDelta(2, 0, [TOKEN], logprobs=[ENTRY])]


def two_in_flight() -> tuple[Scheduler, int]:
    scheduler = build_scheduler(budget=20)
    for number in (1, 2):
        scheduler.add(add_request(number))
    return scheduler, plan_of(scheduler).step


def test_one_that_was_aborted_is_told_nothing() -> None:
    scheduler, step = two_in_flight()
    scheduler.abort(1)
    told = [PromptLogprobs(0, 1, [ENTRY]), PromptLogprobs(1, 1, [ENTRY])]
    deltas = scheduler.update(StepResult(step, [TOKEN, TOKEN], logprobs=[ENTRY, ENTRY], prompt_logprobs=told)).deltas
    assert deltas == [TokenDelta(2, 0, [TOKEN], logprobs=[ENTRY], prompt_logprobs=[ENTRY], prompt_start=1)]


def test_one_that_has_failed_is_told_nothing() -> None:
    scheduler, step = two_in_flight()
    result = StepResult(step, [TOKEN] * 2, [RowFailure(0, "E", "")], [ENTRY] * 2, [PromptLogprobs(0, 1, [ENTRY])])
    assert scheduler.update(result).deltas == [TokenDelta(1, 0, [], "error"), TokenDelta(2, 0, [TOKEN], logprobs=[ENTRY])]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"logprobs": [ENTRY]}, "step 0 has 2 tokens, and 1 logprobs"),
        ({"prompt_logprobs": [PromptLogprobs(2, 1, [ENTRY])]}, "step 0 has 2 rows, prompt logprobs name 2"),
    ],
)
def test_a_result_that_does_not_fit_changes_nothing(result: dict[str, list[object]], message: str) -> None:
    scheduler, step = two_in_flight()
    with pytest.raises(ResultMismatch, match=message):
        scheduler.update(StepResult(step, [TOKEN] * 2, **result))  # type: ignore[arg-type]
    assert len(scheduler.update(StepResult(step, [TOKEN] * 2)).deltas) == 2


@pytest.mark.parametrize(
    ("params", "start"),
    [
        ({"prompt_logprobs": 0}, 0),
        ({"skip_reading_prefix_cache": True}, 0),
        ({"skip_reading_prefix_cache": False}, 8),
        ({}, 8),
    ],
)
def test_who_wants_the_whole_prompt_computed_finds_nothing_but_is_found(params: dict[str, object], start: int) -> None:
    scheduler = build_scheduler(budget=20)
    scheduler.add(add_request(1, range(9), max_tokens=1))
    run_to_end(scheduler)
    scheduler.add(wanting(add_request(2, range(9), max_tokens=1), **params))
    assert entered(*run_to_end(scheduler)) == [(2, start)]
    assert scheduler.stats().prefix_queries == (18 if start else 9)
    scheduler.reset_prefix_cache()
    scheduler.add(wanting(add_request(3, range(9)), **params))
    run_step(scheduler)
    scheduler.add(add_request(4, range(9), max_tokens=1))
    assert entered(run_step(scheduler)) == [(4, 8)]


def test_how_often_a_request_gave_way_is_told_with_each_delta() -> None:
    scheduler = build_scheduler(budget=20, blocks=5, caching=False)
    for number in (1, 2):
        scheduler.add(add_request(number, 5, max_tokens=8))
    told: dict[int, list[int]] = {1: [], 2: []}
    while scheduler.has_work:
        plan = plan_of(scheduler)
        for delta in scheduler.update(StepResult(plan.step, [TOKEN] * len(plan.sample))).deltas:
            told[delta.request].append(delta.preemptions)
    assert told == {1: [0] * 8, 2: [0] * 4 + [1] * 4}
