"""Who is taken for hung: no one who gets on, no one who idles, and no one by an observer that was itself held up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringpost.actors.hang import HangDetector, Observation, cadence_of

LIMIT = 8.0
CADENCE = cadence_of(LIMIT)
LATE = 2 * CADENCE


def seen(actor: str = "core0", *, busy: bool = True, marker: int = 0, epoch: int = 1) -> Observation:
    return Observation(actor, epoch, busy, marker, "holds StepPlan 3")


def looks(detector: HangDetector, times: range, *actors: Observation) -> list[list[str]]:
    """What it says at looks a cadence apart."""
    return [[f"{name} {what}" for name, what in detector.look(number * CADENCE, actors).items()] for number in times]


@pytest.mark.parametrize(
    ("limit", "cadence"), [(300.0, 5.0), (20.0, 5.0), (8.0, 2.0), (1.0, 0.25), (0.2, 0.05), (1e-9, 0.05), (1e6, 5.0)]
)
def test_how_often_it_looks(limit: float, cadence: float) -> None:
    assert cadence_of(limit) == cadence


def test_it_takes_two_looks_past_the_limit() -> None:
    said = looks(HangDetector(LIMIT), range(9), seen())
    assert said[:6] == [[]] * 6  # the fifth, at the limit itself, is not past it; the sixth is the first one past it
    assert said[6:] == [[f"core0 holds StepPlan 3 for {seconds} s"] for seconds in (12, 14, 16)]


def test_each_actor_has_a_time_of_its_own() -> None:
    detector = HangDetector(LIMIT)
    looks(detector, range(3), seen("core0"))
    said = looks(detector, range(3, 10), seen("core0"), seen("worker0.0"))
    assert [len(hung) for hung in said] == [0, 0, 0, 1, 1, 1, 2]
    assert "worker0.0" in said[-1][1]


@pytest.mark.parametrize("other", [seen(marker=1), seen(busy=False), seen(epoch=2), None])
def test_progress_idleness_a_successor_or_its_absence_end_it(other: Observation | None) -> None:
    detector = HangDetector(LIMIT)
    assert looks(detector, range(8), seen())[-1]
    assert looks(detector, range(8, 9), *([other] if other else [])) == [[]]
    assert looks(detector, range(9, 15), seen())[:-1] == [[]] * 5


def test_an_observer_that_was_late_begins_anew() -> None:
    detector = HangDetector(LIMIT)
    looks(detector, range(6), seen())
    late = 5 * CADENCE + LATE + 0.5
    assert detector.look(late, [seen()]) == {}
    said = [detector.look(late + number * CADENCE, [seen()]) for number in range(1, 7)]
    assert said[:-1] == [{}] * 5
    assert said[-1]


def test_a_look_that_is_a_little_late_counts() -> None:
    detector = HangDetector(LIMIT)
    said = [detector.look(number * LATE, [seen()]) for number in range(5)]
    assert [bool(hung) for hung in said] == [False, False, False, False, True]


STEPS = st.lists(
    st.tuples(
        st.sampled_from([CADENCE / 2, CADENCE, 1.5 * CADENCE, LATE, 1.01 * LATE, 3 * LIMIT]),  # since the look before
        st.lists(
            st.builds(
                seen,
                st.sampled_from(["core0", "worker0.0"]),
                busy=st.sampled_from([True, True, True, False]),
                marker=st.sampled_from([0, 0, 0, 1]),
                epoch=st.sampled_from([1, 1, 1, 2]),
            ),
            max_size=2,
            unique_by=lambda observation: observation.actor,
        ),
    ),
    max_size=40,
)


@given(STEPS)
def test_hung_is_what_the_definition_says(steps: list[tuple[float, list[Observation]]]) -> None:
    """By the definition: the same message, at looks that were never late, and at the look before it was past the limit."""
    detector = HangDetector(LIMIT)
    now, history = 0.0, list[tuple[float, dict[str, Observation]]]()
    for pause, observations in steps:
        now += pause
        said = detector.look(now, observations)
        history.append((now, {observation.actor: observation for observation in observations}))
        expected = [observation.actor for observation in observations if is_hung(history, observation)]
        assert [text.partition(" ")[0] for text in said] == expected


def is_hung(history: list[tuple[float, dict[str, Observation]]], now: Observation) -> bool:
    since, after = history[-1][0], history[-1][0]
    for time, actors in reversed(history):
        if after - time > LATE or not now.busy or actors.get(now.actor) != now:
            break
        since = after = time
    return len(history) > 1 and history[-2][0] - since > LIMIT
