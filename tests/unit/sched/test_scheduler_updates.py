"""What a result brings: deltas, ends, failures; what is refused; what an abort leaves behind."""

import pytest
from schedulers import EOS, STOP, add_request, build_scheduler, plan_of

from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.results import RowFailure, StepResult
from ringpost.sched.errors import DoesNotFit, DuplicateRequest, RequestTooLong, ResultMismatch
from ringpost.sched.integrity import check_integrity
from ringpost.sched.outputs import RequestFailure
from ringpost.sched.scheduler import Scheduler


def deltas_of(scheduler: Scheduler, *tokens: int) -> list[TokenDelta]:
    """Make one step whose samples are `tokens`."""
    update = scheduler.update(StepResult(plan_of(scheduler).step, list(tokens)))
    check_integrity(scheduler)
    assert update.failures == []
    return update.deltas


def test_deltas_carry_positions_and_the_token_that_ends() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, 3))
    scheduler.add(add_request(2, 3))
    assert deltas_of(scheduler, 10, 20) == [TokenDelta(1, 0, [10]), TokenDelta(2, 0, [20])]
    assert deltas_of(scheduler, EOS, 21) == [TokenDelta(1, 1, [EOS], "stop"), TokenDelta(2, 1, [21])]
    assert deltas_of(scheduler, STOP) == [TokenDelta(2, 2, [STOP], "stop", STOP)]
    assert not scheduler.has_work
    assert scheduler.stats().free_blocks == 20


def test_an_unfinished_prompt_has_no_delta() -> None:
    scheduler = build_scheduler(budget=2)
    scheduler.add(add_request(1, prompt=3))
    assert deltas_of(scheduler) == []
    assert deltas_of(scheduler, 10) == [TokenDelta(1, 0, [10])]


def test_max_tokens_ends_with_length() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, 3, max_tokens=2))
    assert deltas_of(scheduler, 10) == [TokenDelta(1, 0, [10])]
    assert deltas_of(scheduler, 11) == [TokenDelta(1, 1, [11], "length")]


def test_without_max_tokens_the_model_length_ends() -> None:
    scheduler = build_scheduler(budget=40)
    scheduler.add(add_request(1, prompt=38, max_tokens=None))
    assert deltas_of(scheduler, 10) == [TokenDelta(1, 0, [10])]
    assert deltas_of(scheduler, 11) == [TokenDelta(1, 1, [11], "length")]


def test_resumed_output_counts_for_positions_and_length() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, 3, max_tokens=4, output=(30, 31)))
    assert deltas_of(scheduler, 32) == [TokenDelta(1, 2, [32])]
    assert deltas_of(scheduler, 33) == [TokenDelta(1, 3, [33], "length")]


@pytest.mark.parametrize(
    ("output", "reason", "stop_reason"),
    [((30, EOS), "stop", None), ((30, STOP), "stop", STOP), ((30, 31, 32, 33, 34), "length", None)],
)
def test_resumed_output_that_already_ends_is_finished_at_once(
    output: tuple[int, ...], reason: str, stop_reason: int | None
) -> None:
    scheduler = build_scheduler()
    delta = scheduler.add(add_request(1, 3, output=output, max_tokens=5))
    assert delta is not None
    assert (delta.request, delta.position, delta.tokens) == (1, len(output), [])
    assert (delta.finish_reason, delta.stop_reason) == (reason, stop_reason)
    assert not scheduler.has_work


def test_the_callers_lists_stay_as_they_are() -> None:
    scheduler = build_scheduler()
    one = add_request(1, 3, output=(30,), max_tokens=5)
    scheduler.add(one)
    deltas_of(scheduler, 31)
    assert (one.prompt, one.output) == ([1000, 1001, 1002], [30])


def test_a_failed_row_ends_alone_and_says_why() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, 3))
    scheduler.add(add_request(2, 3))
    failure = RowFailure(0, "FloatingPointError", "logits are not finite")
    update = scheduler.update(StepResult(plan_of(scheduler).step, [0, 20], [failure]))
    assert update.deltas == [TokenDelta(1, 0, [], "error"), TokenDelta(2, 0, [20])]
    assert update.failures == [RequestFailure(1, failure)]
    check_integrity(scheduler)
    assert deltas_of(scheduler, 21) == [TokenDelta(2, 1, [21])]


def test_a_row_can_fail_in_the_middle_of_its_prompt() -> None:
    scheduler = build_scheduler(budget=2)
    scheduler.add(add_request(1, 3))
    update = scheduler.update(StepResult(plan_of(scheduler).step, [], [RowFailure(0, "ValueError", "bad")]))
    assert update.deltas == [TokenDelta(1, 0, [], "error")]
    assert not scheduler.has_work


def test_abort_frees_a_waiting_and_a_running_request() -> None:
    scheduler = build_scheduler(seqs=1)
    scheduler.add(add_request(1, 3))
    scheduler.add(add_request(2, 3))
    deltas_of(scheduler, 10)
    assert scheduler.abort(2)
    assert scheduler.abort(1)
    check_integrity(scheduler)
    assert not scheduler.abort(1)
    assert not scheduler.abort(77)
    assert not scheduler.has_work
    assert scheduler.stats().free_blocks == 20


def test_late_tokens_of_an_aborted_request_are_dropped() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, 3))
    scheduler.add(add_request(2, 3))
    plan = plan_of(scheduler)
    assert scheduler.abort(1)
    check_integrity(scheduler)
    update = scheduler.update(StepResult(plan.step, [10, 20], [RowFailure(0, "ValueError", "bad")]))
    assert (update.deltas, update.failures) == ([TokenDelta(2, 0, [20])], [])


def test_a_number_can_be_used_again_while_its_late_token_is_in_flight() -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, 3))
    plan = plan_of(scheduler)
    assert scheduler.abort(1)
    scheduler.add(add_request(1, 3))
    assert scheduler.update(StepResult(plan.step, [10])).deltas == []
    assert deltas_of(scheduler, 11) == [TokenDelta(1, 0, [11])]


def test_a_token_computed_after_the_end_is_dropped() -> None:
    scheduler = build_scheduler(steps_in_flight=2)
    scheduler.add(add_request(1, 3))
    first, second = plan_of(scheduler), plan_of(scheduler)
    assert scheduler.update(StepResult(first.step, [EOS])).deltas == [TokenDelta(1, 0, [EOS], "stop")]
    check_integrity(scheduler)
    assert scheduler.has_work, "a result is still to come"
    assert scheduler.update(StepResult(second.step, [11])).deltas == []
    assert not scheduler.has_work


def test_a_prompt_without_room_for_an_answer_is_refused() -> None:
    scheduler = build_scheduler()
    with pytest.raises(RequestTooLong, match="prompt has 40 tokens, but max_model_len is 40: at most 39") as caught:
        scheduler.add(add_request(1, prompt=40))
    assert (caught.value.prompt_tokens, caught.value.max_model_len) == (40, 40)
    assert isinstance(caught.value, ValueError)
    assert not scheduler.has_work


def test_a_request_that_can_never_fit_is_refused_with_numbers() -> None:
    scheduler = build_scheduler(blocks=3)
    scheduler.add(add_request(1, prompt=6, max_tokens=7))  # 13 tokens, of which 12 are computed
    with pytest.raises(DoesNotFit, match="up to 14 tokens, which need 4 blocks of 4, but the KV cache holds 3") as caught:
        scheduler.add(add_request(2, prompt=6, max_tokens=8))
    error = caught.value
    assert (error.prompt_tokens, error.tokens, error.blocks, error.num_blocks, error.block_size) == (6, 14, 4, 3, 4)
    assert "at most 13" in str(error)
    assert isinstance(error, ValueError)
    check_integrity(scheduler)
    assert scheduler.stats().waiting == 1


def test_the_worst_case_is_capped_at_the_model_length() -> None:
    scheduler = build_scheduler(blocks=10)  # 40 positions
    scheduler.add(add_request(1, 3, max_tokens=1000))
    assert plan_of(scheduler).rows == [0]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt must hold at least one token"):
        build_scheduler().add(add_request(1, prompt=0))


@pytest.mark.parametrize("running", [False, True])
def test_a_number_in_use_is_refused(running: bool) -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, 3))
    if running:
        deltas_of(scheduler, 10)
    with pytest.raises(DuplicateRequest, match=r"request 1 \('r1'\) was added twice") as caught:
        scheduler.add(add_request(1, 3))
    assert isinstance(caught.value, ValueError)
    check_integrity(scheduler)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (StepResult(1, [10, 20]), "result of step 1, but step 0 is the oldest"),
        (StepResult(0, [10]), "step 0 samples 2 tokens, got 1"),
        (StepResult(0, [10, 20], [RowFailure(2, "ValueError", "bad")]), "step 0 has 2 rows, failure names 2"),
        (StepResult(0, [10, 20], [RowFailure(-1, "ValueError", "bad")]), "step 0 has 2 rows, failure names -1"),
    ],
)
def test_a_result_that_does_not_belong_changes_nothing(result: StepResult, message: str) -> None:
    scheduler = build_scheduler()
    scheduler.add(add_request(1, 3))
    scheduler.add(add_request(2, 3))
    plan = plan_of(scheduler)
    with pytest.raises(ResultMismatch, match=message):
        scheduler.update(result)
    check_integrity(scheduler)
    assert len(scheduler.update(StepResult(plan.step, [10, 20])).deltas) == 2


def test_a_result_without_a_step_is_refused() -> None:
    with pytest.raises(ResultMismatch, match="result of step 0, but no step is in flight"):
        build_scheduler().update(StepResult(0, []))
