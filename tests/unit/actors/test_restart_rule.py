"""When an actor that died is restarted, how soon, and when no more."""

import pytest

from ringpost.actors.restart_rule import RestartRule


def test_deaths_with_finished_steps_between_are_never_too_many() -> None:
    rule = RestartRule(2)
    assert [rule.died(steps=1, blamed=False) for _ in range(100)] == [0.0] * 100


def test_the_third_death_in_a_row_is_the_last() -> None:
    rule = RestartRule(2)
    assert [rule.died(steps=steps, blamed=False) for steps in (7, 0, 0)] == [0.0, 1.0, None]
    assert rule.deaths == 3


def test_a_finished_step_begins_anew() -> None:
    rule = RestartRule(2)
    assert [rule.died(steps=steps, blamed=False) for steps in (0, 0, 3, 0, 0)] == [0.0, 1.0, 0.0, 1.0, None]


@pytest.mark.parametrize("steps", [0, 5])
def test_without_restarts_the_first_death_is_the_last(steps: int) -> None:
    assert RestartRule(0).died(steps=steps, blamed=False) is None


def test_the_delay_doubles_and_has_a_limit() -> None:
    rule = RestartRule(9)
    delays = [rule.died(steps=0, blamed=False) for _ in range(10)]
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, None]


def test_a_death_that_a_request_is_to_blame_for_does_not_count() -> None:
    rule = RestartRule(2)
    blamed = [False, False, True, False, False, True]
    assert [rule.died(steps=0, blamed=one) for one in blamed] == [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]


def test_one_blamed_request_after_the_other_is_the_actors_own_fault() -> None:
    rule = RestartRule(2)
    assert [rule.died(steps=0, blamed=True) for _ in range(5)] == [0.0, 0.0, 1.0, 1.0, None]
    rule = RestartRule(2)
    assert [rule.died(steps=1, blamed=True) for _ in range(9)] == [0.0] * 9
