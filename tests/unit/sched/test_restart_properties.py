"""Random histories in which workers and cores die: by chance, and of certain requests."""

from collections import deque
from dataclasses import dataclass, field, replace
from operator import itemgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from schedulers import Limits, add_request
from slot_worker import SlotWorker, answer

from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.results import StepResult
from ringpost.sched.arrivals import sibling_request
from ringpost.sched.integrity import check_integrity
from ringpost.sched.request import RequestState
from ringpost.sched.scheduler import Scheduler

MAX_MODEL_LEN = 24
STEM = list(range(100, 120))


def in_flight_alone(scheduler: Scheduler) -> int | None:
    """The suspect whose step is in flight."""
    suspect = scheduler.suspects.alone
    return None if suspect is None else suspect.request_id


LIMITS = st.builds(
    Limits,
    max_model_len=st.just(MAX_MODEL_LEN),
    block_size=st.integers(1, 5),
    more_blocks=st.integers(0, 8),
    seqs=st.integers(1, 4),
    budget=st.integers(1, 12),
    steps_in_flight=st.integers(1, 2),
    policy=st.sampled_from(["fcfs", "priority"]),
    caching=st.sampled_from([True, True, False]),
    long_prefill=st.just(0) | st.integers(1, 6),
)


@dataclass(frozen=True)
class Wish:
    """A request but for its number."""

    stem: int
    own: int
    max_tokens: int | None
    priority: int
    deaths: int
    siblings: int = 0

    def request(self, number: int) -> AddRequest:
        prompt = [*STEM[: self.stem], *(1000 * number + index for index in range(self.own))]
        priority, deaths, siblings = self.priority, self.deaths, self.siblings
        return add_request(number, prompt, self.max_tokens, priority=priority, deaths=deaths, siblings=siblings)


WISHES = st.builds(
    Wish,
    stem=st.just(0) | st.integers(0, 16),
    own=st.integers(1, 6),
    max_tokens=st.none() | st.integers(1, 8),
    priority=st.integers(-1, 1),
    deaths=st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3]),
    siblings=st.sampled_from([0, 0, 0, 0, 1, 3]),
)


@dataclass
class Life:
    """What the test knows of an unfinished request."""

    request: AddRequest
    deaths: int = 0  # that the scheduler knows of
    clear_at: int = 0  # positions
    certain: int = 0  # those at which it certainly was in flight
    alone: int = 0  # those at which it was in flight alone
    core_deaths: int = 0  # that the frontend counts
    core_alone: int = 0
    received: list[int] = field(default_factory=list)
    parked: bool = False

    @property
    def known(self) -> int:
        return len(self.request.prompt) + len(self.received)


@dataclass(frozen=True)
class Step:
    """A plan, and whom its rows are for."""

    plan: StepPlan
    owners: list[int]

    def ends(self) -> list[tuple[int, int]]:
        """Each request, and how far it is computed afterwards."""
        return [(o, start + n) for o, start, n in zip(self.owners, self.plan.starts, self.plan.counts, strict=True)]

    def computes(self, number: int, position: int) -> bool:
        parts = zip(self.owners, self.plan.starts, self.plan.counts, strict=True)
        return any(owner == number and start <= position < start + count for owner, start, count in parts)


class Group:
    """A scheduler and a worker with steps between them, and what the frontend has received of each request."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.scheduler = limits.scheduler()
        self.requests: dict[int, AddRequest] = {}  # all that were ever added
        self.worker = SlotWorker(limits.block_size, limits.blocks, limits.seqs, self.requests)
        self.lives: dict[int, Life] = {}
        self.steps: deque[Step] = deque()  # in flight, the oldest first
        self.row_owner: dict[int, int] = {}

    def add(self, request: AddRequest) -> None:
        """As the frontend does; the output that it brings along was received before."""
        assert self.scheduler.add(request) is None
        check_integrity(self.scheduler)
        for one in (request, *(sibling_request(request, sibling) for sibling in request.siblings)):
            life = self.lives.setdefault(one.request, Life(one))
            life.received = list(one.output)
            life.parked = False
            life.deaths = life.core_deaths = one.deaths
            life.certain = life.alone = life.core_alone = one.deaths_alone
            life.clear_at = life.known if one.deaths else 0
            self.requests[one.request] = one

    def plan(self) -> Step | None:
        plan = self.scheduler.schedule()
        check_integrity(self.scheduler)
        if plan is None:
            return None
        for new in plan.new:
            life = self.lives[new.request]
            assert not life.parked
            assert not any(step.plan.sample and new.request in step.owners for step in self.steps), "a token would be lost"
            assert new.tokens == [*life.request.prompt, *life.received]
            self.row_owner[new.row] = new.request
        self.steps.append(Step(plan, [self.row_owner[row] for row in plan.rows]))
        return self.steps[-1]

    def finish_step(self, *failing: int) -> None:
        """The worker makes the oldest step, and the rows with these indices fail."""
        step = self.steps.popleft()
        result = self.worker.execute(step.plan, failing)
        for delta in self.apply(result):
            self.receive(delta)
        for number, end in step.ends():
            life = self.lives.get(number)
            if life is not None and end >= life.clear_at:
                life.deaths = life.certain = life.alone = life.clear_at = 0

    def apply(self, result: StepResult) -> list[TokenDelta]:
        update = self.scheduler.update(result)
        check_integrity(self.scheduler)
        return update.deltas

    def receive(self, delta: TokenDelta) -> None:
        life = self.lives[delta.request]
        assert delta.position == len(life.received)
        life.received += delta.tokens
        life.core_deaths = life.core_alone = 0
        tokens, finish_reason, stop_reason = answer(life.request, MAX_MODEL_LEN)
        assert life.received == tokens[: len(life.received)]
        if delta.finish_reason is None:
            assert len(life.received) < len(tokens)
            return
        if delta.finish_reason != "error":
            assert (life.received, delta.finish_reason, delta.stop_reason) == (tokens, finish_reason, stop_reason)
        del self.lives[delta.request]

    def lose_steps(self) -> None:
        ends: dict[int, int] = {}
        for step in self.steps:
            ends |= dict(step.ends())
        for number in ends.keys() & self.lives.keys():
            life = self.lives[number]
            life.deaths, life.clear_at = life.deaths + 1, max(life.clear_at, ends[number])
            life.certain += 1
            life.alone += number == in_flight_alone(self.scheduler)
        self.steps.clear()
        self.row_owner.clear()
        self.worker = self.worker.successor()

    def replace_workers(self) -> list[int]:
        """They die with all that is in flight; returns who is convicted of it."""
        self.lose_steps()
        convicted = self.scheduler.restart()
        check_integrity(self.scheduler)
        for number in convicted:
            del self.lives[number]
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting, stats.free_blocks) == (0, len(self.lives), self.limits.blocks)
        return convicted

    def replace_core(self) -> list[int]:
        """It dies, and its workers begin anew; returns who is convicted of it, by what the core had said.

        The frontend does not know who was in flight, so all have a death more.
        """
        tried = self.lives.get(in_flight_alone(self.scheduler) or 0)
        if tried is not None:
            tried.core_alone += 1
        convicted = [number for number, life in self.lives.items() if life.core_alone > 1]
        self.lose_steps()
        self.scheduler = self.limits.scheduler()
        for number in convicted:
            del self.lives[number]
        for _, life in sorted(self.lives.items()):
            old = life.request
            parts = (old.request, old.external_id, old.prompt, old.params, old.arrival, old.eos_token_ids, old.priority)
            deaths, alone = life.core_deaths + 1, life.core_alone
            self.add(AddRequest(*parts, output=life.received, deaths=deaths, deaths_alone=alone))
        return convicted


@dataclass(frozen=True)
class Crowd:
    """Requests that come at their times, and some of which are poison."""

    wishes: list[Wish]
    arrivals: list[int]  # after so many steps; those without one come at once
    poisons: dict[int, float]  # by index, and which position of all it is, from 0 to 1

    def requests(self) -> list[AddRequest]:
        """Poison shares no tokens with others, or these could find what it would have died of."""
        changed = [
            replace(wish, deaths=0, stem=0, siblings=0) if index in self.poisons else replace(wish, deaths=0)
            for index, wish in enumerate(self.wishes)
        ]
        return [wish.request(1 + 4 * index) for index, wish in enumerate(changed)]

    def positions(self) -> dict[int, int]:
        """Where each poison kills, by the request's number."""
        found = {}
        for index, part in self.poisons.items():
            if index < len(self.wishes):
                request = self.requests()[index]
                computed = len(request.prompt) + len(answer(request, MAX_MODEL_LEN)[0]) - 1  # its last token never is
                found[request.request] = min(int(part * computed), computed - 1)
        return found


CROWDS = st.builds(
    Crowd,
    wishes=st.lists(WISHES, min_size=1, max_size=8),
    arrivals=st.lists(st.integers(0, 12), max_size=8),
    poisons=st.dictionaries(st.integers(0, 7), st.floats(0, 1), min_size=1, max_size=3),
)


def check_poison(limits: Limits, crowd: Crowd, cores: list[bool]) -> None:
    """Whether the core dies or its workers: exactly the poison is convicted, and all others get their tokens.

    Nobody knows who was in flight when a core died, and a new core does not know of deaths of workers, so it may take more.
    """
    group, positions = Group(limits), crowd.positions()
    arrivals = dict(enumerate(crowd.arrivals))
    coming = sorted(((arrivals.get(index, 0), request) for index, request in enumerate(crowd.requests())), key=itemgetter(0))
    enough = 6 if len(set(cores)) > 1 else 4 if cores[0] else 3
    deaths, steps, convicted = 0, 0, list[int]()
    while coming or group.scheduler.has_work:
        while coming and (coming[0][0] <= steps or not group.scheduler.has_work):
            group.add(coming.pop(0)[1])
        while group.plan() is not None:
            pass
        if any(group.steps[0].computes(number, position) for number, position in positions.items()):
            convicted += group.replace_core() if cores[deaths % len(cores)] else group.replace_workers()
            deaths += 1
            assert deaths <= enough * len(positions)
        else:
            steps += 1
            group.finish_step()
    assert sorted(convicted) == sorted(positions)
    assert not group.lives, "all others got what they must get"
    assert len(positions) != 1 or 3 <= deaths <= enough


CORES = st.sampled_from([[False], [True]]) | st.lists(st.booleans(), min_size=1, max_size=6)


@given(limits=LIMITS, crowd=CROWDS, cores=CORES)
@settings(max_examples=80, deadline=None)
def test_exactly_the_poison_is_convicted(limits: Limits, crowd: Crowd, cores: list[bool]) -> None:
    check_poison(limits, crowd, cores)


@pytest.mark.long
@pytest.mark.timeout(900)
@given(limits=LIMITS, crowd=CROWDS, cores=CORES)
@settings(max_examples=4000, deadline=None)
def test_exactly_the_poison_is_convicted_full(limits: Limits, crowd: Crowd, cores: list[bool]) -> None:
    check_poison(limits, crowd, cores)


class Deaths(RuleBasedStateMachine):
    """Processes die by chance."""

    @initialize(limits=LIMITS, wishes=st.lists(WISHES, min_size=1, max_size=6))
    def build(self, limits: Limits, wishes: list[Wish]) -> None:
        self.group = Group(limits)
        self.alone: int | None = None  # who is in flight alone
        self.begun: int | None = None  # who was last, and has kept its row since
        self.counter = 0
        self.add(wishes)

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=3))
    def add(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            self.counter += 1
            self.group.add(wish.request(self.counter))
            self.counter += wish.siblings

    def draw(self, data: st.DataObject) -> int:
        """An unfinished request, often the one in flight alone, or one that is unknown."""
        alone = [self.alone] * 4 if self.alone is not None else []
        return data.draw(st.sampled_from([*sorted(self.group.lives), self.counter + 1, *alone]))

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        number = self.draw(data)
        assert self.group.scheduler.abort(number) == (number in self.group.lives)
        self.group.lives.pop(number, None)

    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        number = self.draw(data)
        life = self.group.lives.get(number)
        assert self.group.scheduler.park(number) == (life is not None)
        if life is not None:
            life.parked = True
            self.begun = None if self.begun == number else self.begun

    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        self.let_go_on(self.draw(data))

    def let_go_on(self, number: int) -> None:
        life = self.group.lives.get(number)
        assert self.group.scheduler.unpark(number) == (life is not None and life.parked)
        if life is not None:
            life.parked = False

    @rule(preempt_running=st.booleans())
    def reset_prefix_cache(self, preempt_running: bool) -> None:
        self.group.scheduler.reset_prefix_cache(preempt_running=preempt_running)
        self.begun = None if preempt_running else self.begun

    @rule()
    def plan(self) -> None:
        lives, scheduler = self.group.lives, self.group.scheduler
        in_flight, alone = len(self.group.steps), self.alone
        suspects = [number for number, life in lives.items() if life.deaths >= 2 and not life.parked]
        step = self.group.plan()
        if step is None:
            assert in_flight or all(life.parked for life in lives.values()), "unfinished requests, but nothing to compute"
        elif suspects:
            assert (in_flight, alone) == (0, None)
            first = self.begun if self.begun in suspects else min(suspects, key=self.rank)
            assert step.owners == [first]
            self.alone = self.begun = first
        else:
            assert alone is None
            assert not any(lives[number].deaths >= 2 for number in step.owners if number in lives)
        assert in_flight_alone(scheduler) == self.alone

    def rank(self, number: int) -> tuple[int, int]:
        return self.group.lives[number].request.priority if self.group.limits.policy == "priority" else 0, number

    @precondition(lambda self: self.group.steps)
    @rule(data=st.data(), failures=st.integers(0, 10))
    def finish_step(self, data: st.DataObject, failures: int) -> None:
        owners = self.group.steps[0].owners
        self.group.finish_step(*([data.draw(st.integers(0, len(owners) - 1))] if failures == 0 else []))
        self.alone = None
        assert in_flight_alone(self.group.scheduler) is None

    @rule(steps=st.integers(1, 6))
    def make_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.plan()
            if self.group.steps:
                self.group.finish_step()
                self.alone = None

    @precondition(lambda self: self.group.steps)
    @rule(core=st.sampled_from([False, False, False, True]), again=st.booleans())
    def die(self, core: bool, again: bool) -> None:
        """Maybe once more with the very next step."""
        for _ in range(1 + again):
            expected = [number for number in self.group.lives if number == self.alone and self.is_enough(number, core)]
            assert (self.group.replace_core() if core else self.group.replace_workers()) == expected
            self.alone = self.begun = None
            if again:
                self.plan()

    def is_enough(self, number: int, core: bool) -> bool:
        """Whether one more death convicts the request that is in flight alone."""
        life = self.group.lives[number]
        return life.core_alone >= 1 if core else life.certain >= 2 or life.alone >= 1

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "group"):
            return
        check_integrity(self.group.scheduler)
        assert self.group.scheduler.places.requests.keys() == self.group.lives.keys()
        for number, request in self.group.scheduler.places.requests.items():
            life = self.group.lives[number]
            assert (request.deaths, request.clear_at) == (life.deaths, life.clear_at)
            assert (request.state is RequestState.PARKED) == life.parked
        assert in_flight_alone(self.group.scheduler) == self.alone

    def teardown(self) -> None:
        """Nothing waits for ever: when nobody dies any more, all are finished."""
        if not hasattr(self, "group"):
            return
        for number in sorted(self.group.lives):
            self.let_go_on(number)
        for _ in range((len(self.group.lives) + 1) * 2 * MAX_MODEL_LEN):
            self.make_steps(1)
            self.books_agree()
        assert not self.group.lives
        assert not self.group.scheduler.has_work
        assert self.group.scheduler.stats().free_blocks == self.group.limits.blocks


TestDeaths = Deaths.TestCase
TestDeaths.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


class LongDeaths(Deaths):
    """The same, for the full count."""


TestLongDeaths = pytest.mark.long(pytest.mark.timeout(900)(LongDeaths.TestCase))
TestLongDeaths.settings = settings(max_examples=1500, stateful_step_count=50, deadline=None)
