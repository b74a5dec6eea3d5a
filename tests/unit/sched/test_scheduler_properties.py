"""Random histories of a scheduler, with a worker that knows nothing but the plans."""

from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from slot_worker import VOCABULARY, SlotWorker, answer, kv_of, logprobs_of

from ringpost.ipc.messages.config import CacheConfig, SchedulerConfig
from ringpost.ipc.messages.outputs import TokenDelta
from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.requests import AddRequest, CacheKey, Sibling
from ringpost.ipc.messages.results import StepResult
from ringpost.ipc.messages.sampling import RepetitionDetectionParams, SamplingParams
from ringpost.sched import precedence
from ringpost.sched.arrivals import sibling_request
from ringpost.sched.errors import DoesNotFit, RequestTooLong
from ringpost.sched.integrity import check_integrity
from ringpost.sched.kv_cache_manager import KVCacheManager, Match
from ringpost.sched.request import Request, RequestState
from ringpost.sched.scheduler import Scheduler

EOS = (0, 1)
SEEDS = 4  # few, so that answers repeat
STEMS = [[100 * stem + index for index in range(20)] for stem in (1, 2)]


@dataclass(frozen=True)
class Wish:
    """A request but for its prompt."""

    max_tokens: int | None
    min_tokens: int
    stop: tuple[int, ...]
    ignore_eos: bool
    seed: int
    priority: int
    salt: str
    keys: tuple[CacheKey, ...]
    brought: int
    siblings: int
    logprobs: int | None
    prompt_logprobs: int | None
    skip_cache: bool | None
    repetition: RepetitionDetectionParams | None


WISHES = st.builds(
    Wish,
    max_tokens=st.none() | st.integers(1, 12),
    min_tokens=st.just(0) | st.integers(1, 12),
    stop=st.lists(st.integers(0, VOCABULARY - 1), max_size=2).map(tuple),
    ignore_eos=st.booleans(),
    seed=st.integers(0, SEEDS - 1),
    priority=st.integers(-1, 2),
    salt=st.sampled_from(["", "", "", "salt"]),
    keys=st.just(()) | st.lists(st.builds(CacheKey, st.integers(0, 6), st.sampled_from("ab")), max_size=2).map(tuple),
    brought=st.just(0) | st.integers(0, 6),
    siblings=st.sampled_from([0, 0, 0, 1, 2, 4]),
    logprobs=st.sampled_from([None, None, 0, 2, -1]),
    prompt_logprobs=st.sampled_from([None, None, None, 0, 2]),
    skip_cache=st.sampled_from([None, None, True, False]),
    repetition=st.none()
    | st.builds(RepetitionDetectionParams, max_pattern_size=st.integers(1, 3), min_count=st.integers(2, 3)),
)


class Histories(RuleBasedStateMachine):
    """The machine keeps its own books: who is unfinished and parked, and who has received what."""

    @initialize(
        block_size=st.integers(1, 5),
        more_blocks=st.integers(-3, 8),
        max_num_seqs=st.integers(1, 4),
        budget=st.integers(1, 4) | st.integers(1, 12),
        max_model_len=st.integers(2, 24) | st.integers(12, 24),
        steps_in_flight=st.integers(1, 3),
        policy=st.sampled_from(["fcfs", "priority"]),
        caching=st.sampled_from([True, True, True, False]),
        long_prefill=st.just(0) | st.integers(1, 6),
        overtakes=st.sampled_from([0, 2, 256]),
        data=st.data(),
        wishes=st.lists(WISHES, min_size=1, max_size=6),  # not every history has the rule `add`
    )
    def build(
        self,
        block_size: int,
        more_blocks: int,
        max_num_seqs: int,
        budget: int,
        max_model_len: int,
        steps_in_flight: int,
        policy: Literal["fcfs", "priority"],
        caching: bool,
        long_prefill: int,
        overtakes: int,
        data: st.DataObject,
        wishes: list[Wish],
    ) -> None:
        # About what the longest request needs, so that few are refused and many have to give way.
        self.block_size, self.num_blocks = block_size, max(-(-max_model_len // block_size) + more_blocks, 1)
        self.max_model_len, self.steps_in_flight = max_model_len, steps_in_flight
        self.config = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            scheduling_policy=policy,
            long_prefill_token_threshold=long_prefill,
        )
        self.cache = CacheConfig(block_size=block_size, enable_prefix_caching=caching)
        self.patch = patch.object(precedence, "MAX_OVERTAKES", overtakes)
        self.patch.start()
        self.requests: dict[int, AddRequest] = {}  # all that were ever added
        self.worker = SlotWorker(block_size, self.num_blocks, max_num_seqs, self.requests)
        self.known: set[int] = set()  # unfinished
        self.received: dict[int, list[int]] = {}
        self.told: dict[int, int] = {}  # prompt tokens whose logprobs were received, the first one included
        self.siblings: set[int] = set()  # requests that were added with another one
        self.counter = 0
        self.start_scheduler()
        self.add_requests(data, wishes)

    def start_scheduler(self) -> None:
        self.scheduler = Scheduler(
            self.config,
            self.cache,
            num_blocks=self.num_blocks,
            max_model_len=self.max_model_len,
            steps_in_flight=self.steps_in_flight,
        )
        self.places = self.scheduler.places
        self.parked: set[int] = set()
        self.cached: dict[int, int] = {}  # prompt tokens found when a request first entered a row
        self.row_owner: dict[int, int] = {}
        self.planned: deque[tuple[StepPlan, list[int]]] = deque()  # plans, and whom their entries are for

    def worst_blocks(self, request: AddRequest) -> int:
        limit = self.max_model_len - len(request.prompt)
        output = limit if request.params.max_tokens is None else min(limit, request.params.max_tokens)
        return -(-(len(request.prompt) + output - 1) // self.block_size)

    @rule(data=st.data(), wishes=st.lists(WISHES, min_size=1, max_size=3), steps=st.integers(0, 3))
    def add(self, data: st.DataObject, wishes: list[Wish], steps: int) -> None:
        self.add_requests(data, wishes)
        self.make_steps(steps)

    def add_requests(self, data: st.DataObject, wishes: list[Wish]) -> None:
        for wish in wishes:
            self.counter += 1
            prompt = self.draw_prompt(data)
            least = wish.min_tokens if wish.max_tokens is None else min(wish.min_tokens, wish.max_tokens)
            request = AddRequest(
                self.counter,
                str(self.counter),
                prompt,
                SamplingParams(
                    max_tokens=wish.max_tokens,
                    min_tokens=least,
                    stop_token_ids=wish.stop,
                    ignore_eos=wish.ignore_eos,
                    seed=wish.seed,
                    logprobs=wish.logprobs,
                    prompt_logprobs=wish.prompt_logprobs,
                    skip_reading_prefix_cache=wish.skip_cache if wish.prompt_logprobs is None else None,
                    repetition_detection=wish.repetition,
                ),
                0.0,
                EOS,
                wish.priority,
                cache_salt=wish.salt,
                cache_keys=wish.keys,
                siblings=tuple(Sibling(self.counter + index, index) for index in range(1, wish.siblings + 1)),
            )
            self.counter += wish.siblings
            if len(prompt) < self.max_model_len:  # a core that died may have delivered something
                request.output.extend(answer(request, self.max_model_len)[0][:-1][: wish.brought])
            self.offer(request)

    def draw_prompt(self, data: st.DataObject) -> list[int]:
        """An earlier prompt, maybe with its answer, as a chat goes on; or the beginning of a stem and something of its own."""
        kind = data.draw(st.integers(0, 5))
        if kind <= 2 and self.requests:
            earlier = data.draw(st.sampled_from(sorted(self.requests)))
            if kind:
                return self.requests[earlier].prompt
            before = [*self.requests[earlier].prompt, *self.received[earlier]]
            return [*before, *range(500, 500 + data.draw(st.integers(0, 3)))]
        stem = data.draw(st.sampled_from(STEMS))[: data.draw(st.integers(0, 6) | st.integers(0, 20))]
        own = data.draw(st.integers(0 if stem else 1, 3))
        return [*stem, *(1000 * self.counter + index for index in range(own))]

    def offer(self, request: AddRequest) -> None:
        if len(request.prompt) >= self.max_model_len:
            with pytest.raises(RequestTooLong):
                self.scheduler.add(request)
        elif self.worst_blocks(request) > self.num_blocks:
            with pytest.raises(DoesNotFit):
                self.scheduler.add(request)
        else:
            assert self.scheduler.add(request) is None
            self.siblings.update(sibling.request for sibling in request.siblings)
            for one in (request, *(sibling_request(request, sibling) for sibling in request.siblings)):
                self.known.add(one.request)
                self.requests[one.request] = one
                self.received[one.request] = list(one.output)
                self.told.setdefault(one.request, 1)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.counter + 1))
        assert self.scheduler.abort(number) == (number in self.known)
        self.forget(number)
        assert not self.scheduler.abort(number)

    def forget(self, number: int) -> None:
        self.known.discard(number)
        self.parked.discard(number)

    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([*sorted(self.known), self.counter + 1]))
        assert self.scheduler.park(number) == (number in self.known)
        if number in self.known:
            self.parked.add(number)

    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        self.let_go_on(data.draw(st.sampled_from([*sorted(self.parked), self.counter + 1]) | st.integers(0, self.counter)))

    def let_go_on(self, number: int) -> None:
        assert self.scheduler.unpark(number) == (number in self.parked)
        self.parked.discard(number)

    @precondition(lambda self: self.scheduler.stats().prefix_hits)
    @rule(preempt_running=st.booleans())
    def reset_prefix_cache(self, preempt_running: bool) -> None:
        self.scheduler.reset_prefix_cache(preempt_running=preempt_running)
        assert not self.places.kv_cache_manager.pool.entries()
        assert not (preempt_running and any(request.block_table for request in self.places.requests.values()))
        if not self.planned:  # whoever reads what was there before finds nothing; a step in flight still may
            tables = [holder.block_table for holder in self.places.requests.values()]
            tables += [prompt.block_table for prompt in self.places.siblings.held]
            held = {block for table in tables for block in table}
            for block, place in list(self.worker.slots):
                if block not in held:
                    del self.worker.slots[block, place]

    @rule()
    def schedule(self) -> None:
        places = self.places
        ran = places.running.snapshot()
        exclusive = {other.request_id: self.frees_something(other) for other in ran}
        alone = len(places.running) + len(places.waiting) == 1
        plan, deferred = self.plan()
        check_integrity(self.scheduler)
        if plan is None:
            idle = len(self.planned) < self.steps_in_flight
            assert not (idle and not self.planned and self.known - self.parked), "unfinished requests, but nothing to compute"
            return
        owners = self.owners(plan)
        self.planned.append((plan, owners))
        assert sum(plan.counts) <= self.config.max_num_batched_tokens
        assert len(places.running) <= min(self.config.max_num_seqs, self.config.max_num_batched_tokens)
        longest = self.config.long_prefill_token_threshold
        assert alone or not longest or max(plan.counts) <= longest
        self.check_victims(ran, exclusive)
        self.check_order(plan, deferred)
        self.check_sharing()
        if places.running and self.has_something_to_compute(places.running.first(), plan):
            assert places.running.first().request_id in owners, "the first of all always gets on"

    def plan(self) -> tuple[StepPlan | None, set[int]]:
        """The next plan, and who was passed over in it, last looked at, because others are just computing its prefix.

        Only the moment tells: those looked at before may have just begun to compute it, and those looked at after may take the
        blocks that were found.
        """
        is_being_computed, deferred = KVCacheManager.is_being_computed, set[int]()

        def note(manager: KVCacheManager, request: Request, match: Match) -> bool:
            computing = is_being_computed(manager, request, match)
            assert not computing or (match.num_computing and not request.block_table)
            (deferred.add if computing else deferred.discard)(request.request_id)
            return computing

        with patch.object(KVCacheManager, "is_being_computed", note):
            return self.scheduler.schedule(), deferred

    def owners(self, plan: StepPlan) -> list[int]:
        """Whom the plan's entries are for, having looked at those that enter a row."""
        for new in plan.new:
            number = new.request
            assert number in self.known - self.parked
            assert not any(owners[index] == number for earlier, owners in self.planned for index in earlier.sample)
            assert new.tokens == self.requests[number].prompt + self.received[number], "a token would be lost"
            self.row_owner[new.row] = number
            if number not in self.cached:
                start = plan.starts[plan.rows.index(new.row)]
                assert start < len(new.tokens)
                if not (number in self.siblings and start == new.prompt_length - 1):
                    assert start % self.block_size == 0
                    assert (self.cache.enable_prefix_caching and new.params.reads_prefix_cache) or not start
                self.cached[number] = start
        owners = [self.row_owner[row] for row in plan.rows]
        for owner, row in zip(owners, plan.rows, strict=True):
            request = self.places.requests[owner]
            assert (request.state, request.row) == (RequestState.RUNNING, row)
        return owners

    def frees_something(self, request: Request) -> bool:
        return self.places.kv_cache_manager.yields(request)

    def check_victims(self, ran: list[Request], exclusive: dict[int, bool]) -> None:
        """Nobody has to give way while one with a worse priority goes on, unless that one would free nothing."""
        waiting, running = RequestState.WAITING, RequestState.RUNNING
        priorities = [other.rank[0] for other in ran if other.state is running and exclusive[other.request_id]]
        live = [*self.places.running, *self.places.waiting]
        for victim in ran:
            if victim.state is waiting:
                assert not priorities or victim.rank[0] >= max(priorities)
                assert any(other.rank < victim.rank for other in live), "the first of all never gives way"

    def check_order(self, plan: StepPlan, deferred: set[int]) -> None:
        """Nobody overtakes, but for one that waits for a prefix that others are just computing; nobody waits needlessly."""
        places = self.places
        waiting = places.waiting.snapshot()
        left_behind = [other for other in waiting if other.request_id not in deferred]
        for new in plan.new:
            admitted = places.requests[new.request]
            assert not left_behind or admitted.rank < left_behind[0].rank
        if waiting and left_behind[:1] == waiting[:1] and sum(plan.counts) < self.config.max_num_batched_tokens:
            first = waiting[0]
            rows = min(self.config.max_num_seqs, self.config.max_num_batched_tokens) - len(places.running)
            needed = places.kv_cache_manager.match(first).num_blocks + len(places.running)
            free = self.blocks_for(first)
            preempted = any(other.num_cached_tokens >= 0 and not other.block_table for other in waiting)
            in_flight = any(first.request_id in owners for _, owners in list(self.planned)[:-1])
            assert rows < 1 or free < needed or preempted or in_flight, "nobody waits needlessly"

    def blocks_for(self, first: Request) -> int:
        """Blocks that are free or would be if all without a row lost theirs, but for those that it shares with them."""
        manager, holders = self.places.kv_cache_manager, self.places.holders([first])
        held = Counter(block for holder in holders for block in holder.block_table)
        found = {entry.block for entry in manager.match(first).found}
        lost = sum(count == manager.pool.references(block) for block, count in held.items() if block not in found)
        return manager.pool.num_free + lost

    def check_sharing(self) -> None:
        """A block with several owners is full, and at the same place of requests that are equal up to its end."""
        contents: dict[int, tuple[int, int]] = {}
        copied = {held.block_table[-1] for held in self.places.siblings.held}
        holders = [request for request in self.places.requests.values() if request.block_table]
        for request in holders:
            number = request.request_id
            kv = kv_of(self.requests[number], [*request.prompt, *request.output])
            for index, block in enumerate(request.block_table):
                if self.places.kv_cache_manager.pool.references(block) > 1 and block not in copied:
                    content = (index, kv[(index + 1) * self.block_size - 1])
                    assert contents.setdefault(block, content) == content, f"block {block} has two live owners"

    def has_something_to_compute(self, request: Request, plan: StepPlan) -> bool:
        """Whether the tokens known or planned before this plan left something to compute; its last never does."""
        return plan.rows.count(request.row) > 0 or request.num_computed < request.num_schedulable

    @precondition(lambda self: self.planned)
    @rule(data=st.data(), failures=st.integers(0, 10))
    def complete(self, data: st.DataObject, failures: int) -> None:
        plan, owners = self.planned.popleft()
        failing = {data.draw(st.integers(0, len(owners) - 1))} if failures == 0 else set[int]()
        self.apply(self.worker.execute(plan, failing), owners)

    def apply(self, result: StepResult, owners: list[int]) -> None:
        update = self.scheduler.update(result)
        failed = [owners[failure.index] for failure in result.failures if owners[failure.index] in self.known]
        assert [failure.request for failure in update.failures] == failed
        assert len({delta.request for delta in update.deltas}) == len(update.deltas)
        for delta in update.deltas:
            self.receive(delta, failed)

    def receive(self, delta: TokenDelta, failed: list[int]) -> None:
        request = self.requests[delta.request]
        received = self.received[delta.request]
        assert delta.request in self.known
        assert delta.position == len(received)
        if received:
            assert delta.cached_tokens == 0, "said once, with the first token"
        else:
            assert delta.cached_tokens == self.cached[delta.request] < len(request.prompt)
        if delta.finish_reason != "error":
            self.check_logprobs(request, delta, len(received))
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

    def check_logprobs(self, request: AddRequest, delta: TokenDelta, position: int) -> None:
        """They are those of the tokens; of the prompt's, what continues what was told before is new."""
        prompt, params = request.prompt, request.params
        wanted, prompt_wanted = params.logprobs, params.prompt_logprobs
        tokens = enumerate(delta.tokens, len(prompt) + position)
        assert delta.logprobs == [logprobs_of(token, at, wanted) for at, token in tokens if wanted is not None]
        assert delta.tokens or delta.prompt_logprobs
        start, told = delta.prompt_start, len(delta.prompt_logprobs)
        if delta.prompt_logprobs:
            assert prompt_wanted is not None
            part = enumerate(prompt[start : start + told], start)
            assert delta.prompt_logprobs == [logprobs_of(token, at, prompt_wanted) for at, token in part]
            assert start <= self.told[request.request] or params.reads_prefix_cache, "some are left out"
            self.told[request.request] = max(self.told[request.request], start + told)
        if delta.tokens and prompt_wanted is not None and not params.reads_prefix_cache:
            assert self.told[request.request] == len(prompt)

    @rule(steps=st.integers(1, 6))
    def make_steps(self, steps: int) -> None:
        """Some steps in a row, without a failure."""
        for _ in range(steps):
            self.schedule()
            if self.planned:
                plan, owners = self.planned.popleft()
                self.apply(self.worker.execute(plan), owners)
            self.books_agree()

    @precondition(lambda self: self.scheduler.stats().steps > 10)
    @rule()
    def restart(self) -> None:
        """The core dies: all requests are added again with what was delivered, and the worker forgets its rows."""
        self.worker.rows.clear()
        self.start_scheduler()
        unfinished, self.known = sorted(self.known), set()
        for number in unfinished:
            old = self.requests[number]
            self.offer(
                AddRequest(
                    old.request,
                    old.external_id,
                    old.prompt,
                    old.params,
                    old.arrival,
                    old.eos_token_ids,
                    old.priority,
                    output=list(self.received[number]),
                    cache_salt=old.cache_salt,
                    cache_keys=old.cache_keys,
                )
            )
            assert number in self.known

    @precondition(lambda self: not any(request.deaths for request in self.places.requests.values()))
    @rule()
    def replace_workers(self) -> None:
        """The worker dies with what is in flight. Not again while that may make suspects, for whom other rules hold."""
        assert self.scheduler.restart() == []
        self.worker = self.worker.successor()
        self.planned.clear()
        self.row_owner.clear()
        assert self.scheduler.stats().free_blocks == self.num_blocks

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        check_integrity(self.scheduler)
        stats = self.scheduler.stats()
        assert stats.running + stats.waiting == len(self.known)
        assert stats.parked == len(self.parked)
        assert set(self.places.parked) == self.parked
        found = {number: min(start, len(self.requests[number].prompt)) for number, start in self.cached.items()}
        assert sum(found[number] for number in found if number not in self.siblings) <= stats.prefix_hits <= sum(found.values())
        assert self.scheduler.has_work == bool(self.known or self.planned)

    def teardown(self) -> None:
        """Nothing waits for ever: without further requests all but the parked are finished, and then these, once they go on."""
        if not hasattr(self, "scheduler"):
            return
        try:
            self.finish_all_but_parked()
            for number in sorted(self.parked):
                self.let_go_on(number)
            self.finish_all_but_parked()
            assert not self.known
            assert not self.scheduler.has_work
            assert self.scheduler.stats().free_blocks == self.num_blocks
        finally:
            self.patch.stop()

    def finish_all_but_parked(self) -> None:
        # One request after the other, each as slowly as can be: its prefix computed by another, its own tokens one by one.
        limit = (len(self.known) + 1) * 2 * (self.max_model_len + self.steps_in_flight)
        for _ in range(limit):
            if not (self.planned or self.known - self.parked):
                return
            self.make_steps(1)
        pytest.fail(f"not finished after {limit} steps: {sorted(self.known - self.parked)}")


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


class LongHistories(Histories):
    """The same, for the full count."""


TestLongHistories = pytest.mark.long(pytest.mark.timeout(900)(LongHistories.TestCase))
TestLongHistories.settings = settings(max_examples=3000, stateful_step_count=60, deadline=None)
