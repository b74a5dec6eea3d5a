"""Places: where each request is, which row and blocks it holds, and how it moves."""

from collections import Counter
from collections.abc import Collection, Iterable

from ..ipc.messages.config import CacheConfig
from .kv_cache_manager import KVCacheManager, Match
from .preemption import choose_holder, choose_victim
from .ranked_queue import RankedQueue
from .request import Request, RequestState
from .rows import RowPool


class Places:
    """All requests that are not finished: each is in the one of `waiting`, `running` and `parked` that its state names."""

    def __init__(self, num_blocks: int, cache: CacheConfig, *, num_rows: int) -> None:
        self.kv_cache_manager = KVCacheManager(num_blocks, cache)
        self.row_pool = RowPool(num_rows)
        self.requests: dict[int, Request] = {}
        self.running = RankedQueue()
        self.waiting = RankedQueue()
        self.parked: dict[int, Request] = {}  # the one parked longest first
        self.num_preemptions = 0

    def add(self, request: Request) -> None:
        """Let a new request wait."""
        self.requests[request.request_id] = request
        self.waiting.push(request)

    def enter(self, request: Request, match: Match) -> None:
        """Give a waiting request a row, and blocks for all tokens known now."""
        if request.block_table:
            self.kv_cache_manager.extend(request, request.num_known)
        else:
            self.kv_cache_manager.admit(request, match)
        self._leave(request)
        request.state = RequestState.RUNNING
        request.row = self.row_pool.take()
        self.running.push(request)

    def park(self, request: Request) -> None:
        """Take its row from a request, which keeps its blocks until others need them."""
        self._leave(request)
        request.state = RequestState.PARKED
        self.parked[request.request_id] = request
        self.kv_cache_manager.withdraw(request)  # nobody may wait for what is not computed any more

    def wait_again(self, request: Request) -> None:
        """Let a running or parked request wait for its turn."""
        self._leave(request)
        request.state = RequestState.WAITING
        self.waiting.push(request)

    def preempt(self, request: Request) -> int:
        """Let a running request wait again, without its blocks; returns how many more are free now.

        The result of a step in flight still counts: its tokens are delivered, and it has no other turn before that.
        """
        pool = self.kv_cache_manager.pool
        before = pool.num_free
        self.num_preemptions += 1
        self.wait_again(request)
        self.kv_cache_manager.free(request)
        return pool.num_free - before

    def release(self, request: Request) -> None:
        """Free what a request holds, and forget it.

        Row and blocks may go to another request in the very next plan, even while a step in flight still writes to
        them: workers execute plans strictly in order, so that step's writes, KV and token alike, are done before
        the next owner's row is set up, and the next owner reads no position that it has not written itself.
        """
        self._leave(request)
        self.kv_cache_manager.free(request)
        request.state = RequestState.FINISHED
        del self.requests[request.request_id]

    def restart(self) -> None:
        """All that was computed and all steps in flight are lost: nobody keeps row or blocks, and those that ran wait again."""
        self.kv_cache_manager.restart(self.requests.values())
        for request in self.running.snapshot():
            self.wait_again(request)

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

    def holders(self, but: Collection[Request]) -> list[Request]:
        """All other requests that kept blocks without a row."""
        return [other for other in (*self.parked.values(), *self.waiting) if other.block_table and other not in but]

    def blocks_of(self, requests: Iterable[Request]) -> int:
        """Blocks that would be free if all of these lost theirs."""
        held = Counter(block for request in requests for block in request.block_table)
        pool = self.kv_cache_manager.pool
        return sum(pool.references(block) == count for block, count in held.items())

    def find_block(self, request: Request) -> bool:
        """Make sure of a free block for a running request, if need be at the cost of others: first those that hold blocks
        without a row, then those that run and rank behind it. False if there are none.
        """
        while not self.kv_cache_manager.pool.num_free:
            holder = choose_holder(self.parked.values(), reversed(self.waiting), but=request)
            if holder is not None:
                self.kv_cache_manager.free(holder)
                continue
            victim = choose_victim((other for other in self.running if other.rank > request.rank), self.kv_cache_manager)
            if victim is None:
                return False
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
        found = [entry.block for entry in match.found]
        for block in found:  # held for the request, so that it does not count as free when another one loses it
            pool.share(block)
        count = manager.blocks_for(request.num_known) - len(found or request.block_table) + spare
        enough = pool.num_free + self.blocks_of(self.holders([request])) >= count
        while enough and pool.num_free < count:
            holder = choose_holder(self.parked.values(), reversed(self.waiting), but=request)
            assert holder is not None, "blocks_of promised more than there was"
            manager.free(holder)
        pool.free(reversed(found))
        return enough

    def _leave(self, request: Request) -> None:
        """Take a live request out of the place that its state names; a running one gives up its row, and keeps its blocks."""
        match request.state:
            case RequestState.WAITING:
                self.waiting.remove(request)
            case RequestState.PARKED:
                del self.parked[request.request_id]
            case RequestState.RUNNING:
                self.running.remove(request)
                self.row_pool.free(request.row)
