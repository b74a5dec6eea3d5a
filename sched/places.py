"""Places: where each request is, which row and blocks it holds, and how it moves."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, takewhile

from ..ipc.messages.config import CacheConfig
from .batch import Batch
from .context import Context
from .held_prompt import HeldPrompt
from .kv_cache_manager import KVCacheManager, Match
from .preemption import choose_victim
from .ranked_queue import RankedQueue
from .request import NEVER, Request, RequestState
from .rows import RowPool
from .sessions import Sessions
from .siblings import Siblings

Holder = Request | HeldPrompt | Context  # who keeps blocks without a row


class Places:
    """All requests that are not finished: each is in the one of `waiting`, `running` and `parked` that its state names, or
    follows one of them.
    """

    def __init__(self, num_blocks: int, cache: CacheConfig, *, num_rows: int, in_flight: Collection[Batch]) -> None:
        """`in_flight` are the steps without a result, now and later."""
        self.kv_cache_manager = KVCacheManager(num_blocks, cache)
        self.row_pool = RowPool(num_rows)
        self.requests: dict[int, Request] = {}
        self.running = RankedQueue()
        self.waiting = RankedQueue()
        self.parked: dict[int, Request] = {}  # the one parked longest first
        self.kept: dict[int, Request] = {}  # those of `waiting` that kept blocks
        self.siblings = Siblings(self.kv_cache_manager, self.waiting)
        self.sessions = Sessions(self.kv_cache_manager, in_flight)
        self.num_preemptions = 0
        self._idle_have_none = (self.kv_cache_manager.pool, -1)  # when that was found out

    def add(self, request: Request) -> None:
        """Let a new request wait."""
        self.requests[request.request_id] = request
        self.waiting.push(request)
        if request.block_table:
            self.kept[request.request_id] = request

    def add_group(self, leader: Request, followers: Collection[Request]) -> None:
        """The same for siblings, the second and later of which follow the first."""
        self.add(leader)
        if followers:
            self.requests.update((follower.request_id, follower) for follower in followers)
            self.siblings.follow(leader, followers)

    def enter(self, request: Request, match: Match) -> None:
        """Give a waiting request a row, and blocks for all tokens known now."""
        self.kv_cache_manager.enter(request, match)
        self._leave(request)
        request.state = RequestState.RUNNING
        request.row = self.row_pool.take()
        self.running.push(request)

    def park(self, request: Request) -> None:
        """Take its row from a request, which keeps its blocks until others need them."""
        self.siblings.let_go(request)
        self._leave(request)
        request.state = RequestState.PARKED
        self.parked[request.request_id] = request
        self.kv_cache_manager.withdraw(request)  # nobody may wait for what is not computed any more

    def wait_again(self, request: Request) -> None:
        """Let a running or parked request wait for its turn."""
        self._leave(request)
        request.state = RequestState.WAITING
        self.waiting.push(request)
        if request.block_table:
            self.kept[request.request_id] = request

    def preempt(self, request: Request) -> int:
        """Let a running request wait again, without its blocks; returns how many more are free now.

        The result of a step in flight still counts: its tokens are delivered, and it has no other turn before that.
        """
        pool = self.kv_cache_manager.pool
        before = pool.num_free
        self.num_preemptions += 1
        request.num_preemptions += 1
        self.kv_cache_manager.free(request)
        self.wait_again(request)
        return pool.num_free - before

    def release(self, request: Request) -> None:
        """Free what a request holds, but for what its session keeps, and forget it.

        Row and blocks may go to another request in the very next plan, even while a step in flight still writes to
        them: workers execute plans strictly in order, so that step's writes, KV and token alike, are done before
        the next owner's row is set up, and the next owner reads no position that it has not written itself, or whose
        result its session has seen.
        """
        self.siblings.let_go(request)
        self._leave(request)
        self.give_back(request)
        self.siblings.ended(request)
        request.state = RequestState.FINISHED
        del self.requests[request.request_id]

    def give_back(self, request: Request) -> None:
        """Free the blocks of a request that has ended, but for those that its session keeps."""
        if request.session:
            self.sessions.end(request)
        self.kv_cache_manager.free(request)

    def restart(self) -> None:
        """All that was computed and all steps in flight are lost: nobody keeps row or blocks, and those that ran wait again."""
        self.siblings.give_up_all()
        self.kept.clear()
        self.sessions.lost()
        self.kv_cache_manager.restart(self.requests.values())
        for request in self.running.snapshot():
            self.wait_again(request)

    def reset_prefix_cache(self, *, preempt_running: bool) -> None:
        """Let nothing be found that was computed so far; with `preempt_running`, let nobody keep any of it."""
        self.kv_cache_manager.reset(self.requests.values(), [*self.siblings.held, *self.sessions.idle.values()])
        if preempt_running:
            self.siblings.give_up_all()
            self.sessions.evict_all()
            for request in self.running.snapshot():
                self.wait_again(request)
            for request in (*self.parked.values(), *self.waiting):
                self.kv_cache_manager.free(request)
            self.kept.clear()

    def enter_first(self, request: Request, max_running: int) -> bool:
        """Give a request that waits or runs a row, and blocks for all tokens known now, whoever has to do without them.

        No step may be in flight. Returns whether it enters a row; False if it had row and blocks already.
        """
        if request.state is RequestState.RUNNING:
            if request.num_slots >= request.num_known:
                return False
            self.wait_again(request)  # it comes back with more blocks
        if len(self.running) >= max_running:
            last = self.running.last()
            self.kv_cache_manager.withdraw(last)
            self.wait_again(last)
        match = self.kv_cache_manager.match(request)
        while not self.reserve(request, match, spare=0):
            self.preempt(choose_victim(self.running, self.kv_cache_manager) or self.running.last())
            match = self.kv_cache_manager.match(request)
        self.enter(request, match)
        return True

    def holders(self, but: Collection[Request] = ()) -> Iterator[Holder]:
        """All that keep blocks without a row, but for these waiting requests and what is held for them.

        They are in the order in which they are to lose them: the session idle longest, the request parked longest, the request
        whose turn comes last, the prompt held last.
        """
        yield from self.sessions.idle.values()
        yield from self._holders_but_idle(but)

    def _holders_but_idle(self, but: Collection[Request] = ()) -> Iterator[Holder]:
        yield from (request for request in self.parked.values() if request.block_table)
        kept = sorted(self.kept.values(), key=lambda request: request.rank, reverse=True)
        yield from (request for request in kept if request not in but)
        entering = [request.held for request in but]
        yield from (held for held in reversed(self.siblings.held) if held not in entering)

    def blocks_of(self, holders: Collection[Holder], enough: int = NEVER) -> int:
        """Blocks that would be free if all of these lost theirs; where there are `enough`, no more are counted."""
        references, own = self.kv_cache_manager.pool.references, 0
        for holder in holders:  # what nobody else holds is at the end of a table, and soon counted
            own += sum(1 for _ in takewhile(lambda block: references(block) == 1, reversed(holder.block_table)))
            if own >= enough:
                return own
        held = Counter(chain.from_iterable(holder.block_table for holder in holders))
        return sum(count == references(block) for block, count in held.items())

    def would_free(self, holders: Collection[Holder], count: int) -> bool:
        """Whether so many blocks would be free if all of these lost theirs."""
        return self.blocks_of(holders, count) >= count

    def find_block(self, request: Request) -> bool:
        """Make sure of a free block for a running request, if need be at the cost of others: first those that hold blocks
        without a row, then those that run and rank behind it. False if there are none.

        Holders whose loss yields next to nothing are left alone, but for sessions, unless the first of all would not get on.
        """
        manager = self.kv_cache_manager
        while not manager.pool.num_free:
            if self._take_from_idle():
                break
            holder = next(filter(manager.yields, self._holders_but_idle()), None)
            if holder is not None:
                self._take_from(holder)
                continue
            victim = choose_victim((other for other in self.running if other.rank > request.rank), manager)
            if victim is None:
                if request is not self.running.first():
                    return False
                if self._free_up(1, list(self.holders())):
                    break
                victim = self.running.last()  # those without a row hold its blocks too, and lose them next
            self.preempt(victim)
        return True

    def reserve(self, request: Request, match: Match, spare: int) -> bool:
        """Make sure of the free blocks that a waiting request needs, and of `spare` more, if need be at the cost of others
        without a row. False, and nobody has lost anything, if even that is not enough.
        """
        manager = self.kv_cache_manager
        pool = manager.pool
        if pool.num_free >= match.num_blocks + spare:
            return True
        holders, enough = list(self.holders([request])), False
        if len(holders) > len(self.sessions.idle) or self._idle_yield():
            found = [entry.block for entry in match.found]
            for block in found:  # held for the request, so that it does not count as free when another one loses it
                pool.share(block)
            enough = self._free_up(manager.needed(request, match.found) + spare, holders)
            pool.free(reversed(found))
        held = request.beginning
        if not (enough or self.running) and held is not None:
            self.siblings.give_up(held)  # alone, it needs less than the copy and what it copies
            return self.reserve(request, manager.match_of(request, match.found), spare)
        if not (enough or self.running) and manager.has_to_copy(request):
            manager.give_up_last(request)
            return self.reserve(request, manager.match_of(request, []), spare)
        return enough

    def _free_up(self, count: int, holders: Sequence[Holder]) -> bool:
        """Make sure of so many free blocks at the cost of these, those first from which it is worth while to take some.

        False, and nobody has lost anything, if that is not enough.
        """
        manager = self.kv_cache_manager
        if not self.would_free(holders, count - manager.pool.num_free):
            return False
        for is_next in (manager.yields, manager.owns, lambda _: True):
            for holder in holders:
                if manager.pool.num_free >= count:
                    return True
                if holder.block_table and is_next(holder):
                    self._take_from(holder)
        return True

    def _take_from_idle(self) -> bool:
        """Make sure of a free block at the cost of idle sessions. False, and none has lost anything, if they have none."""
        pool, idle = self.kv_cache_manager.pool, self.sessions.idle.values()
        owner = next((context for context in idle if pool.references(context.block_table[-1]) == 1), None)
        if owner is None:
            return self._idle_yield() and self._free_up(1, list(idle))
        self.sessions.evict(owner)
        return True

    def _idle_yield(self) -> bool:
        """Whether idle sessions together hold a block that nobody else does.

        If not, that stays so until a reference is dropped of a block that others hold too, as by each turn that ends.
        """
        pool, idle = self.kv_cache_manager.pool, self.sessions.idle.values()
        now = (pool, pool.num_parted)
        if self._idle_have_none != now and not self.would_free(idle, 1):
            self._idle_have_none = now
        return self._idle_have_none != now

    def _take_from(self, holder: Holder) -> None:
        if isinstance(holder, HeldPrompt):
            self.siblings.give_up(holder)
        elif isinstance(holder, Context):
            self.sessions.evict(holder)
        else:
            self.kv_cache_manager.free(holder)
            self.kept.pop(holder.request_id, None)

    def _leave(self, request: Request) -> None:
        """Take a live request out of the place that its state names; a running one gives up its row, and keeps its blocks."""
        match request.state:
            case RequestState.WAITING:
                self.waiting.remove(request)
                self.kept.pop(request.request_id, None)
            case RequestState.PARKED:
                del self.parked[request.request_id]
            case RequestState.RUNNING:
                self.running.remove(request)
                self.row_pool.free(request.row)
