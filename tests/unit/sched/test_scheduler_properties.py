"""Random histories of a scheduler, with a worker that knows nothing but the plans."""

import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ringpost.ipc.messages.config import CacheConfig, SchedulerConfig
from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.requests import AddRequest
from ringpost.ipc.messages.results import RowFailure, StepResult
from ringpost.ipc.messages.sampling import SamplingParams
from ringpost.sched.errors import DoesNotFit, RequestTooLong
from ringpost.sched.integrity import check_integrity
from ringpost.sched.scheduler import Scheduler

VOCABULARY = 10
EOS = (0, 1)


def token_at(seed: int, position: int) -> int:
    """The token that a request samples as its output's `position`-th, whatever the batch."""
    return zlib.crc32(f"{seed}:{position}".encode()) % VOCABULARY


def answer(request: AddRequest, max_model_len: int) -> tuple[list[int], str, int | None]:
    """What the request must get: tokens, finish reason, stop reason."""
    params = request.params
    assert params.seed is not None
    tokens: list[int] = []
    while True:
        token = token_at(params.seed, len(tokens))
        tokens.append(token)
        may_stop = len(tokens) > params.min_tokens
        if may_stop and not params.ignore_eos and token in EOS:
            return tokens, "stop", None
        if may_stop and token in params.stop_token_ids:
            return tokens, "stop", token
        if len(request.prompt) + len(tokens) >= max_model_len or len(tokens) == params.max_tokens:
            return tokens, "length", None


@dataclass
class Row:
    """A worker's persistent row."""

    request: int
    tokens: list[int]
    prompt_length: int
    blocks: list[int]
    seed: int
    computed: int


@dataclass
class FakeWorker:
    """Executes plans in order over a slot memory, and checks that it reads back only what the same request wrote."""

    block_size: int
    num_blocks: int
    max_num_seqs: int
    rows: dict[int, Row] = field(default_factory=dict)
    slots: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)

    def execute(self, plan: StepPlan, failing: set[int]) -> StepResult:
        assert len({new.row for new in plan.new}) == len(plan.new)
        for new in plan.new:
            assert 0 <= new.row < self.max_num_seqs
            assert new.params.seed is not None
            start = plan.starts[plan.rows.index(new.row)]
            tokens, blocks = list(new.tokens), list(new.blocks)
            self.rows[new.row] = Row(new.request, tokens, new.prompt_length, blocks, new.params.seed, start)
        assert len(plan.rows) == len(plan.starts) == len(plan.counts) == len(plan.blocks)
        assert len(set(plan.rows)) == len(plan.rows)
        sampled = []
        for index, number in enumerate(plan.rows):
            row = self.rows[number]
            row.blocks += plan.blocks[index]
            self.forward(row, plan.starts[index], plan.counts[index])
            complete = row.computed == len(row.tokens)
            assert complete == (index in plan.sample), f"row {number} samples at {row.computed} of {len(row.tokens)}"
            if complete:
                sampled.append(token_at(row.seed, len(row.tokens) - row.prompt_length))
                row.tokens.append(sampled[-1])
        assert plan.sample == sorted(set(plan.sample))
        return StepResult(plan.step, sampled, [RowFailure(index, "ValueError", "nan") for index in sorted(failing)])

    def forward(self, row: Row, start: int, count: int) -> None:
        """Write the KV of the new positions, then read that of all positions so far, as attention does."""
        assert start == row.computed
        assert count >= 1
        row.computed = start + count
        for position in range(start, row.computed):
            self.slots[self.slot(row, position)] = (row.request, position, row.tokens[position])
        for position in range(row.computed):
            assert self.slots[self.slot(row, position)] == (row.request, position, row.tokens[position])

    def slot(self, row: Row, position: int) -> tuple[int, int]:
        block = row.blocks[position // self.block_size]
        assert 0 <= block < self.num_blocks
        return block, position % self.block_size


class Histories(RuleBasedStateMachine):
    """The machine keeps its own books: who waits, is parked or runs with which blocks, who has received what."""

    @initialize(
        block_size=st.integers(1, 5),
        num_blocks=st.integers(2, 12),
        max_num_seqs=st.integers(1, 4),
        budget=st.integers(1, 4) | st.integers(1, 12),
        max_model_len=st.integers(2, 24) | st.integers(12, 24),
        steps_in_flight=st.integers(1, 3),
    )
    def build(
        self,
        block_size: int,
        num_blocks: int,
        max_num_seqs: int,
        budget: int,
        max_model_len: int,
        steps_in_flight: int,
    ) -> None:
        self.block_size, self.num_blocks, self.max_num_seqs = block_size, num_blocks, max_num_seqs
        self.budget, self.max_model_len, self.steps_in_flight = budget, max_model_len, steps_in_flight
        self.worker = FakeWorker(block_size, num_blocks, max_num_seqs)
        self.known: dict[int, AddRequest] = {}  # unfinished
        self.received: dict[int, list[int]] = {}
        self.counter = 0
        self.start_scheduler()

    def start_scheduler(self) -> None:
        self.scheduler = Scheduler(
            SchedulerConfig(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.budget),
            CacheConfig(block_size=self.block_size),
            num_blocks=self.num_blocks,
            max_model_len=self.max_model_len,
            steps_in_flight=self.steps_in_flight,
        )
        self.waiting: list[int] = []  # new ones
        self.returning: list[int] = []
        self.parked: list[int] = []
        self.kept: dict[int, list[int]] = {}  # blocks of requests that gave up their row
        self.running: dict[int, list[int]] = {}  # blocks by request, in order of admission
        self.computed: dict[int, int] = {}  # positions planned by request
        self.row_owner: dict[int, int] = {}
        self.planned: deque[tuple[StepPlan, list[int]]] = deque()  # plans, and whom their entries are for

    def worst_blocks(self, request: AddRequest) -> int:
        limit = self.max_model_len - len(request.prompt)
        output = limit if request.params.max_tokens is None else min(limit, request.params.max_tokens)
        return -(-(len(request.prompt) + output - 1) // self.block_size)

    @rule(
        prompt=st.integers(1, 4) | st.integers(1, 20),
        max_tokens=st.none() | st.integers(1, 12),
        stop=st.lists(st.integers(0, VOCABULARY - 1), max_size=2),
        ignore_eos=st.booleans(),
        seed=st.integers(0, 10_000),
        least=st.just(0) | st.integers(1, 12),
    )
    def add(self, prompt: int, max_tokens: int | None, stop: list[int], ignore_eos: bool, seed: int, least: int) -> None:
        self.counter += 1
        min_tokens = least if max_tokens is None else min(least, max_tokens)
        params = SamplingParams(
            max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=tuple(stop), ignore_eos=ignore_eos, seed=seed
        )
        prompt_tokens = [1000 * self.counter + index for index in range(prompt)]
        request = AddRequest(self.counter, str(self.counter), prompt_tokens, params, 0.0, EOS)
        if prompt >= self.max_model_len:
            with pytest.raises(RequestTooLong):
                self.scheduler.add(request)
        elif self.worst_blocks(request) > self.num_blocks:
            with pytest.raises(DoesNotFit):
                self.scheduler.add(request)
        else:
            assert self.scheduler.add(request) is None
            self.known[self.counter] = request
            self.received[self.counter] = []
            self.waiting.append(self.counter)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.counter + 1))
        assert self.scheduler.abort(number) == (number in self.known)
        if number in self.known:
            self.forget(number)
            assert not self.scheduler.abort(number)

    def forget(self, number: int) -> None:
        del self.known[number]
        self.leave(number)
        self.kept.pop(number, None)

    def leave(self, number: int) -> None:
        """Take a request out of its place; one that ran keeps its blocks."""
        if number in self.running:
            self.kept[number] = self.running.pop(number)
            self.row_owner = {row: owner for row, owner in self.row_owner.items() if owner != number}
        for queue in (self.waiting, self.returning, self.parked):
            if number in queue:
                queue.remove(number)

    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([*self.running, self.counter + 1]) | st.integers(0, self.counter))
        assert self.scheduler.park(number) == (number in self.known)
        if number in self.known and number not in self.parked:
            self.leave(number)
            self.parked.append(number)

    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        self.let_go_on(data.draw(st.sampled_from([*self.parked, self.counter + 1]) | st.integers(0, self.counter)))

    def let_go_on(self, number: int) -> None:
        assert self.scheduler.unpark(number) == (number in self.parked)
        if number in self.parked:
            self.leave(number)
            self.returning.append(number)

    def in_flight(self, number: int) -> int:
        """How many tokens of a request are planned, and not delivered yet."""
        return sum(owners[index] == number for plan, owners in self.planned for index in plan.sample)

    @rule()
    def schedule(self) -> None:
        before = list(self.running)
        expected = len(self.planned) < self.steps_in_flight
        hungry = [number for number in before if self.has_something_to_compute(number)]
        plan = self.scheduler.schedule()
        if plan is None:
            queue = [*self.returning, *self.waiting]
            assert not (expected and hungry)
            assert not (expected and queue and not self.running and not self.in_flight(queue[0]))
            return
        assert expected
        owners = self.owners(plan)
        assert owners[: len(hungry)] == hungry, "all running requests first, in order of admission"
        assert owners[len(hungry) :] == [new.request for new in plan.new], "then the new ones"
        assert sum(plan.counts) <= self.budget
        assert len(self.running) <= self.max_num_seqs
        blocks = [block for table in (*self.running.values(), *self.kept.values()) for block in table]
        assert len(blocks) == len(set(blocks)), "no block has two live owners"
        if sum(plan.counts) < self.budget and len(self.running) < self.max_num_seqs:
            for number in [*self.returning, *self.waiting][:1]:
                held = self.reserved(self.running) + self.worst_blocks(self.known[number])
                assert self.in_flight(number) or held > self.num_blocks, "nobody waits needlessly"
        self.planned.append((plan, owners))

    def owners(self, plan: StepPlan) -> list[int]:
        """Book the plan's news; returns whom its entries are for."""
        for new in plan.new:
            number = new.request
            assert number == [*self.returning, *self.waiting][0], "first come, first served, those that ran before first"
            assert not self.in_flight(number), "a token in flight would be lost"
            assert new.tokens == self.known[number].prompt + self.received[number]
            assert new.row not in self.row_owner
            self.row_owner[new.row] = number
            self.leave(number)
            self.make_room(number)
            kept = self.kept.pop(number, None)
            assert kept == (None if kept is None else new.blocks[: len(kept)])
            self.running[number] = list(new.blocks)
            self.computed[number] = self.computed[number] if kept else 0
            assert plan.starts[plan.rows.index(new.row)] == self.computed[number], "it goes on where it left off"
        owners = [self.row_owner[row] for row in plan.rows]
        for owner, blocks, count in zip(owners, plan.blocks, plan.counts, strict=True):
            self.running[owner] += blocks
            self.computed[owner] += count
        return owners

    def reserved(self, numbers: Iterable[int]) -> int:
        return sum(self.worst_blocks(self.known[number]) for number in numbers)

    def make_room(self, number: int) -> None:
        """Take blocks from those that hold some without a row, the parked ones first, as far as the request needs them."""
        holders = [other for other in (*self.parked, *reversed(self.returning)) if other in self.kept]
        while self.reserved({*self.running, *self.kept, number}) > self.num_blocks:
            del self.kept[holders.pop(0)]

    def has_something_to_compute(self, number: int) -> bool:
        """Whether the tokens known or planned of a running request leave something to compute; its last never does."""
        request = self.known[number]
        output = len(self.received[number]) + self.in_flight(number)
        tokens = len(request.prompt) + output
        final = tokens == self.max_model_len or output == request.params.max_tokens
        return self.computed[number] < tokens - final

    @precondition(lambda self: self.planned)
    @rule(data=st.data(), failures=st.integers(0, 20))
    def complete(self, data: st.DataObject, failures: int) -> None:
        plan, owners = self.planned.popleft()
        failing = {data.draw(st.integers(0, len(owners) - 1))} if failures == 0 else set()
        self.apply(self.worker.execute(plan, failing), owners)

    def apply(self, result: StepResult, owners: list[int]) -> None:
        update = self.scheduler.update(result)
        failed = [owners[failure.index] for failure in result.failures if owners[failure.index] in self.known]
        assert [failure.request for failure in update.failures] == failed
        assert len({delta.request for delta in update.deltas}) == len(update.deltas)
        for delta in update.deltas:
            self.receive(delta, failed)

    def receive(self, delta: TokenDelta, failed: list[int]) -> None:
        request = self.known[delta.request]
        received = self.received[delta.request]
        assert delta.position == len(received)
        received += delta.tokens
        tokens, finish_reason, stop_reason = answer(request, self.max_model_len)
        if delta.request in failed:
            assert (delta.tokens, delta.finish_reason) == ([], "error")
        elif delta.finish_reason is None:
            assert len(received) < len(tokens)
            assert received == tokens[: len(received)]
        else:
            assert (received, delta.finish_reason, delta.stop_reason) == (tokens, finish_reason, stop_reason)
        if delta.finish_reason is not None:
            self.forget(delta.request)

    @rule(steps=st.integers(1, 6))
    def make_steps(self, steps: int) -> None:
        """Some steps in a row, without a failure."""
        for _ in range(steps):
            self.schedule()
            if self.planned:
                plan, owners = self.planned.popleft()
                self.apply(self.worker.execute(plan, set()), owners)
            self.books_agree()

    @rule()
    def restart(self) -> None:
        """The core dies: all requests are added again with what was delivered, and the worker forgets its rows."""
        self.worker.rows.clear()
        self.start_scheduler()
        for number, request in self.known.items():
            self.known[number] = AddRequest(
                request.request,
                request.external_id,
                request.prompt,
                request.params,
                request.arrival,
                request.eos_token_ids,
                output=list(self.received[number]),
            )
            assert self.scheduler.add(self.known[number]) is None
            self.waiting.append(number)

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        check_integrity(self.scheduler)
        stats = self.scheduler.stats()
        waiting = len(self.waiting) + len(self.returning) + len(self.parked)
        assert (stats.running, stats.waiting, stats.parked) == (len(self.running), waiting, len(self.parked))
        assert stats.free_blocks == self.num_blocks - sum(map(len, (*self.running.values(), *self.kept.values())))
        assert self.scheduler.has_work == bool(self.known or self.planned)

    def teardown(self) -> None:
        """Nothing waits for ever: without further requests, every step gets on, until all but the parked are finished.

        Then these go on, and finish too.
        """
        if not hasattr(self, "scheduler"):
            return
        self.finish_all_but_parked()
        for number in list(self.parked):
            self.let_go_on(number)
        self.finish_all_but_parked()
        assert not self.known
        assert not self.scheduler.has_work
        assert self.scheduler.stats().free_blocks == self.num_blocks

    def finish_all_but_parked(self) -> None:
        while self.planned or len(self.known) > len(self.parked):
            steps = self.scheduler.stats().steps
            self.make_steps(1)
            assert self.scheduler.stats().steps == steps + 1, "unfinished requests, but nothing to compute"


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


class LongHistories(Histories):
    """The same, for the full count."""


TestLongHistories = pytest.mark.long(LongHistories.TestCase)
TestLongHistories.settings = settings(max_examples=1500, stateful_step_count=80, deadline=None)
