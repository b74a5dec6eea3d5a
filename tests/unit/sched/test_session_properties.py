"""Random histories of sessions, their turns and other requests, with a worker that knows nothing but the plans."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from schedulers import Limits, add_request
from slot_worker import SlotWorker, answer

from ringpost.ipc.messages.plans import StepPlan
from ringpost.ipc.messages.requests import AddRequest, CacheKey
from ringpost.sched.arrivals import sibling_request
from ringpost.sched.context import Context
from ringpost.sched.errors import DoesNotFit, RequestTooLong, SessionMismatch
from ringpost.sched.integrity import check_integrity
from ringpost.sched.request import RequestState

MAX_MODEL_LEN = 32
STEM = list(range(100, 130))
LIMITS = st.builds(
    Limits,
    max_model_len=st.just(MAX_MODEL_LEN),
    block_size=st.integers(2, 5) | st.integers(1, 5),
    more_blocks=st.integers(-2, 12),
    seqs=st.integers(1, 4),
    budget=st.integers(1, 4) | st.integers(4, 16),
    steps_in_flight=st.integers(1, 2),
    policy=st.sampled_from(["fcfs", "fcfs", "priority"]),
    caching=st.sampled_from([True, True, True, False]),
)


@dataclass
class Talk:
    """A session as its frontend knows it."""

    tokens: list[int] = field(default_factory=list)
    turn: int | None = None
    computed: int = 0  # positions whose KV the core keeps between two turns
    known: bool = True  # in the core
    salt: str = ""
    keys: tuple[CacheKey, ...] = ()


@dataclass(frozen=True)
class Wish:
    """What comes next: a turn, or a request of no session."""

    session: int  # 0: none
    back: int  # tokens of the context that are let go of
    size: int
    kind: Literal["own", "stem", "same"]  # tokens that nobody else has, or the same ones at the same place, or one of them only
    max_tokens: int
    priority: int
    salt: str | None  # None: as before
    keys: tuple[CacheKey, ...] | None
    skip_cache: bool
    siblings: int  # of a request of no session
    deaths: int


WISHES = st.builds(
    Wish,
    session=st.sampled_from([0, 1, 1, 1, 2, 2, 3, 4]),
    back=st.sampled_from([0, 0, 0, 1, 1, 2]) | st.integers(0, 6) | st.integers(0, 20),
    size=st.integers(0, 5) | st.integers(1, 3) | st.integers(0, 16),
    kind=st.sampled_from(["own", "stem", "same"]),
    max_tokens=st.integers(1, 4) | st.integers(1, 8),
    priority=st.integers(-1, 1),
    salt=st.sampled_from([None] * 40 + ["", "salt"]),
    keys=st.sampled_from([None] * 40 + [(), (CacheKey(2, "a"),), (CacheKey(0, "a"), CacheKey(7, "b"))]),
    skip_cache=st.sampled_from([False, False, False, True]),
    siblings=st.sampled_from([0, 0, 1, 3]),
    deaths=st.sampled_from([0] * 12 + [1, 2]),
)


class Talks(RuleBasedStateMachine):
    """The machine keeps its own books: each session's context, who is unfinished, and how far each request has results."""

    @initialize(limits=LIMITS, wishes=st.lists(WISHES, min_size=1, max_size=5))
    def build(self, limits: Limits, wishes: list[Wish]) -> None:
        self.limits = limits
        self.requests: dict[int, AddRequest] = {}  # all that were ever added, with their whole prompts
        self.worker = SlotWorker(limits.block_size, limits.blocks, limits.seqs, self.requests)
        self.talks: dict[int, Talk] = {}
        self.received: dict[int, list[int]] = {}  # by unfinished request
        self.counter = 0
        self.start_scheduler()
        self.add(wishes, 0)

    def start_scheduler(self) -> None:
        self.scheduler = self.limits.scheduler()
        self.places = self.scheduler.places
        self.sessions = self.places.sessions
        self.planned: deque[tuple[StepPlan, list[int]]] = deque()
        self.row_owner: dict[int, int] = {}
        self.results: dict[int, int] = {}  # positions of a request that have results
        self.parked: set[int] = set()
        self.disturbed = 0  # when something was last lost, in steps

    @rule(wishes=st.lists(WISHES, min_size=1, max_size=3), steps=st.integers(0, 4))
    def add(self, wishes: list[Wish], steps: int) -> None:
        for wish in wishes:
            self.counter += 1
            if wish.session:
                self.add_turn(wish, self.talks.setdefault(wish.session, Talk(known=False)))
            else:
                before = self.talks.get(1 + wish.back % 8, Talk()).tokens
                prompt = [*before, *self.chunk(wish, len(before))] or [1]
                self.offer(self.request_of(wish, prompt[: MAX_MODEL_LEN - 1], Talk(), wish.siblings))
                self.counter += wish.siblings
            self.books_agree()
        self.make_steps(steps)

    def chunk(self, wish: Wish, base: int) -> list[int]:
        if wish.kind == "own":
            return [1000 * self.counter + index for index in range(wish.size)]
        return [5] * wish.size if wish.kind == "same" else STEM[base:][: wish.size]

    def request_of(self, wish: Wish, prompt: list[int], talk: Talk, siblings: int = 0) -> AddRequest:
        made = add_request(
            self.counter,
            prompt,
            wish.max_tokens,
            priority=wish.priority,
            salt=talk.salt,
            keys=talk.keys,
            deaths=wish.deaths,
            siblings=siblings,
        )
        return msgspec.structs.replace(made, params=made.params.derive(skip_reading_prefix_cache=wish.skip_cache or None))

    def add_turn(self, wish: Wish, talk: Talk) -> None:
        """Turns follow one another."""
        base = max(len(talk.tokens) - wish.back, 0)  # of the context
        if base > MAX_MODEL_LEN - wish.size and wish.priority:  # it would soon only be refused
            base //= 2
        chunk = self.chunk(wish, base)
        after = replace(talk, salt=talk.salt if wish.salt is None else wish.salt)
        after.keys = talk.keys if wish.keys is None else wish.keys
        whole = msgspec.structs.replace(self.request_of(wish, [*talk.tokens[:base], *chunk], after), session=wish.session)
        base = base if talk.known else 0
        turn = msgspec.structs.replace(whole, base=base, prompt=whole.prompt[base:])
        if talk.turn is not None:
            return self.refuse(turn, SessionMismatch)
        kept = self.kept(talk, after, whole.prompt, base)
        if self.offer(turn, whole):
            talk.salt, talk.keys, talk.known, talk.turn = after.salt, after.keys, True, turn.request
            talk.tokens, talk.computed = [], 0
            assert self.places.requests[turn.request].num_computed == kept, "what was kept is not computed again"
            self.results[turn.request] = kept

    def kept(self, talk: Talk, after: Talk, prompt: list[int], base: int) -> int:
        """Positions that the next turn does not compute."""
        same = next((at for at, pair in enumerate(zip(talk.tokens, prompt, strict=False)) if pair[0] != pair[1]), MAX_MODEL_LEN)
        for length in (same, base):
            most = min(talk.computed, length, len(prompt) - 1)
            if (after.salt, block_keys(after.keys, most, self.limits)) == (talk.salt, block_keys(talk.keys, most, self.limits)):
                return most
        return 0

    def refuse(self, request: AddRequest, error: type[Exception]) -> None:
        before = self.books()
        with pytest.raises(error):
            self.scheduler.add(request)
        assert self.books() == before, "a request that is refused changes nothing"

    def books(self) -> object:
        contexts = [[getattr(context, name) for name in Context.__slots__] for context in self.sessions.contexts.values()]
        return str(contexts), list(self.sessions.idle), self.scheduler.stats()

    def offer(self, request: AddRequest, whole: AddRequest | None = None) -> bool:
        whole = whole or request
        worst = len(whole.prompt) + min(whole.params.max_tokens or 0, MAX_MODEL_LEN - len(whole.prompt)) - 1
        if not whole.prompt:
            self.refuse(request, ValueError)
        elif len(whole.prompt) >= MAX_MODEL_LEN:
            self.refuse(request, RequestTooLong)
        elif -(-worst // self.limits.block_size) > self.limits.blocks:
            self.refuse(request, DoesNotFit)
        else:
            assert self.scheduler.add(request) is None
            for one in (whole, *(sibling_request(whole, sibling) for sibling in whole.siblings)):
                self.requests[one.request] = msgspec.structs.replace(one, siblings=())
                self.received[one.request] = list(one.output)
                self.results.setdefault(one.request, 0)
            return True
        return False

    @rule(session=st.integers(1, 4), more=st.integers(1, 5), siblings=st.integers(0, 1))
    def mistake(self, session: int, more: int, siblings: int) -> None:
        """What a frontend with other ideas of the session would send."""
        known = self.sessions.contexts.get(session)
        length = 0 if known is None else len(known.token_ids)
        turn = add_request(self.counter + 1, 2, siblings=siblings)
        self.refuse(msgspec.structs.replace(turn, session=session, base=0 if siblings else length + more), SessionMismatch)
        before = self.books()
        tokens = self.context_of(session)
        for child, too_long in ((5, len(tokens) + more), *((other, 0) for other in self.sessions.contexts)):
            with pytest.raises(SessionMismatch):
                self.scheduler.fork_session(session, child, too_long)
        assert self.books() == before

    def context_of(self, session: int) -> list[int]:
        """All that the core has to know of a session."""
        talk = self.talks.get(session, Talk(known=False))
        if not talk.known:
            return []
        if talk.turn is not None:
            return [*self.requests[talk.turn].prompt, *self.received[talk.turn]]
        return talk.tokens

    def draw(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from([*sorted(self.received), self.counter + 1]))

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        number = self.draw(data)
        held = self.holding()
        assert self.scheduler.abort(number) == (number in self.received)
        if number in self.received:
            self.ended(number, held)

    def holding(self) -> set[int]:
        """Requests that hold blocks."""
        return {number for number, request in self.places.requests.items() if request.block_table}

    def ended(self, number: int, held: Collection[int], *, failed: bool = False) -> None:
        """A request has ended: its session has its tokens, and the KV of what has results, if it held any."""
        received = self.received.pop(number)
        results = self.results.pop(number)
        self.parked.discard(number)
        for talk in self.talks.values():
            if talk.turn == number:
                talk.turn, talk.tokens = None, [*self.requests[number].prompt, *received]
                talk.computed = results if number in held and not failed else 0

    @rule(session=st.integers(1, 5), back=st.integers(0, 12))
    def truncate(self, session: int, back: int) -> None:
        talk = self.talks.get(session, Talk(known=False))
        length = max(len(talk.tokens) - back, 0)
        self.scheduler.truncate_session(session, length)
        if talk.known and talk.turn is None:
            talk.tokens, talk.computed = talk.tokens[:length], min(talk.computed, length)

    @precondition(lambda self: any(talk.known for talk in self.talks.values()))
    @rule(data=st.data(), back=st.integers(0, 4) | st.integers(0, 12), wishes=st.lists(WISHES, max_size=3))
    def fork(self, data: st.DataObject, back: int, wishes: list[Wish]) -> None:
        """Maybe both go on at once."""
        session = data.draw(st.sampled_from([session for session, talk in self.talks.items() if talk.known]))
        child = data.draw(st.sampled_from([one for one in range(1, 5) if one != session]))
        talk = self.talks[session]
        self.close(child)
        tokens = self.context_of(session)
        length = max(len(tokens) - back, 0)
        self.scheduler.fork_session(session, child, length)
        computed = talk.computed if talk.turn is None else self.results[talk.turn] * (talk.turn in self.holding())
        self.talks[child] = Talk(tokens[:length], None, min(computed, length), salt=talk.salt, keys=talk.keys)
        self.books_agree()
        self.add([replace(wish, session=one) for wish, one in zip(wishes, (child, session, child), strict=False)], len(wishes))

    @rule(session=st.integers(1, 12))
    def close(self, session: int) -> None:
        talk = self.talks.pop(session, Talk())
        assert self.scheduler.close_session(session) == talk.turn
        if talk.turn is not None:
            self.ended(talk.turn, ())
        assert self.scheduler.close_session(session) is None

    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        number = self.draw(data)
        assert self.scheduler.park(number) == (number in self.received)
        self.parked |= {number} & self.received.keys()

    @rule(data=st.data())
    def unpark(self, data: st.DataObject) -> None:
        number = self.draw(data)
        assert self.scheduler.unpark(number) == (number in self.parked)
        self.parked.discard(number)

    def quiet_for(self, steps: int) -> bool:
        """Sessions have had time to grow."""
        return self.scheduler.next_step - self.disturbed >= steps

    @precondition(lambda self: self.quiet_for(10))
    @rule(preempt_running=st.sampled_from([False, False, True]))
    def reset_prefix_cache(self, preempt_running: bool) -> None:
        self.disturbed = self.scheduler.next_step
        self.scheduler.reset_prefix_cache(preempt_running=preempt_running)
        for talk in self.talks.values():
            talk.computed = 0 if preempt_running else talk.computed
        assert not self.places.kv_cache_manager.pool.entries()

    def owns_last(self, context: Context) -> bool:
        return self.places.kv_cache_manager.pool.references(context.block_table[-1]) == 1

    @rule()
    def schedule(self) -> None:
        before = {number: request.num_computed for number, request in self.places.requests.items() if request.block_table}
        idle = {session: self.owns_last(context) for session, context in self.sessions.idle.items()}
        plan = self.scheduler.schedule()
        check_integrity(self.scheduler)
        evicted = [session for session in idle if session not in self.sessions.idle]
        for session, owned in idle.items():
            if session in evicted:
                self.talks[session].computed = 0
            elif owned and self.owns_last(self.sessions.contexts[session]):
                assert list(idle).index(session) >= len(evicted), "the one idle longest gives way first"
        if plan is None:
            assert not evicted
            assert self.planned or not self.received.keys() - self.parked, "unfinished requests, but nothing to compute"
            return
        for new in plan.new:
            self.enters(new.request, plan.starts[plan.rows.index(new.row)], new.tokens)
            self.row_owner[new.row] = new.request
        if plan.new and not any(plan.blocks) and plan.new[0].request in before:  # nobody can have taken its blocks meanwhile
            number, start = plan.new[0].request, self.results[plan.new[0].request]
            cut = before[number] // self.limits.block_size * self.limits.block_size
            assert start == before[number] or (start == cut and len(self.places.running) == 1)
        owners = [self.row_owner[row] for row in plan.rows]
        assert all(self.places.requests[owner].state is RequestState.RUNNING for owner in owners)
        self.planned.append((plan, owners))

    def enters(self, number: int, start: int, tokens: list[int]) -> None:
        assert number in self.received.keys() - self.parked
        assert tokens == [*self.requests[number].prompt, *self.received[number]], "the context is another one"
        assert start < len(tokens)
        self.results[number] = start

    @precondition(lambda self: self.planned)
    @rule(data=st.data(), failures=st.integers(0, 8))
    def complete(self, data: st.DataObject, failures: int) -> None:
        self.finish_step(*([data.draw(st.integers(0, len(self.planned[0][1]) - 1))] if failures == 0 else []))

    def finish_step(self, *failing: int) -> None:
        """The worker makes the oldest step, and the rows with these indices fail."""
        plan, owners = self.planned.popleft()
        held = self.holding()
        update = self.scheduler.update(self.worker.execute(plan, failing))
        for owner, start, count in zip(owners, plan.starts, plan.counts, strict=True):
            if owner in self.received:
                self.results[owner] = start + count
        failed = {owners[index] for index in failing}
        for delta in update.deltas:
            received = self.received[delta.request]
            assert delta.position == len(received)
            received += delta.tokens
            if delta.request in failed:
                assert (delta.tokens, delta.finish_reason) == ([], "error")
            else:
                tokens, reason, _ = answer(self.requests[delta.request], MAX_MODEL_LEN)
                assert received == tokens[: len(received)]
                assert delta.finish_reason == (reason if received == tokens else None)
            if delta.finish_reason is not None:
                self.ended(delta.request, held, failed=delta.request in failed)

    @rule(steps=st.integers(1, 6))
    def make_steps(self, steps: int) -> None:
        """As the core does, which leaves as many in flight as may be."""
        for _ in range(steps):
            before = len(self.planned)
            if before < self.limits.steps_in_flight:
                self.schedule()
            if self.planned and len(self.planned) in (before, self.limits.steps_in_flight):
                self.finish_step()
            self.books_agree()

    @precondition(lambda self: self.received.keys() - self.parked)
    @rule()
    def finish(self) -> None:
        """All but those that are parked."""
        for _ in range((len(self.received) + 1) * 3 * MAX_MODEL_LEN):
            if not (self.planned or self.received.keys() - self.parked):
                return
            self.make_steps(1)
        pytest.fail(f"not finished: {sorted(self.received.keys() - self.parked)}")

    @precondition(lambda self: self.quiet_for(10) and not any(one.deaths for one in self.places.requests.values()))
    @rule()
    def replace_workers(self) -> None:
        """They die with what is in flight. Not again while that may make suspects."""
        assert self.scheduler.restart() == []
        self.worker = self.worker.successor()
        self.disturbed = self.scheduler.next_step
        self.planned.clear()
        self.row_owner.clear()
        self.results = dict.fromkeys(self.results, 0)
        for talk in self.talks.values():
            talk.computed = 0
        assert self.scheduler.stats().free_blocks == self.limits.blocks

    @precondition(lambda self: self.quiet_for(20))
    @rule()
    def replace_core(self) -> None:
        """It dies: unfinished requests come again with what was delivered, sessions only with their next turns."""
        self.worker = self.worker.successor()
        unfinished, self.received = sorted(self.received.items()), {}
        self.start_scheduler()
        for talk in self.talks.values():
            talk.known, talk.computed = talk.turn is not None, 0
        for number, received in unfinished:
            assert self.offer(msgspec.structs.replace(self.requests[number], output=received))

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        check_integrity(self.scheduler)
        known = {session: talk for session, talk in self.talks.items() if talk.known}
        assert self.sessions.contexts.keys() == known.keys()
        for session, talk in known.items():
            context = self.sessions.contexts[session]
            assert (context.turn.request_id if context.turn else None) == talk.turn
            assert (context.token_ids, context.num_computed) == (talk.tokens, talk.computed)
        stats = self.scheduler.stats()
        assert stats.running + stats.waiting == len(self.received)
        assert stats.sessions == len(known)
        evicted = [talk for talk in known.values() if talk.tokens and not talk.computed]
        assert stats.sessions_evicted == len(evicted)
        assert self.scheduler.has_work == bool(self.received or self.planned)

    def teardown(self) -> None:
        """Nothing waits for ever, and when all is finished and closed, nothing is held."""
        if not hasattr(self, "scheduler"):
            return
        for number in sorted(self.parked):
            assert self.scheduler.unpark(number)
        self.parked.clear()
        self.finish()
        assert not self.scheduler.has_work
        for session in list(self.talks):
            self.close(session)
        stats = self.scheduler.stats()
        assert (stats.sessions, stats.sessions_evicted, stats.free_blocks) == (0, 0, self.limits.blocks)


def block_keys(keys: tuple[CacheKey, ...], kept: int, limits: Limits) -> list[CacheKey]:
    """Those of the blocks that hold the first positions."""
    return [extra for extra in keys if extra.position < -(-kept // limits.block_size) * limits.block_size]


TestTalks = Talks.TestCase
TestTalks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class LongTalks(Talks):
    """The same, for the full count."""


TestLongTalks = pytest.mark.long(pytest.mark.timeout(900)(LongTalks.TestCase))
TestLongTalks.settings = settings(max_examples=3000, stateful_step_count=60, deadline=None)
