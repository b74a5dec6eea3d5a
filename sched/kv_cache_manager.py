"""KVCacheManager: each request's block table, and the prefixes that requests share."""

from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from ..ipc.messages.config import CacheConfig
from .block_pool import BlockPool, CachedBlock, Key, Parent
from .errors import DoesNotFit
from .request import NEVER, Request


class Match(NamedTuple):
    """The beginning of a request as found in the prefix cache."""

    found: list[CachedBlock]
    num_computing: int  # blocks behind those that another request, of the same or a better priority, is just computing
    num_blocks: int  # free ones that the request takes, for all tokens known now; those found count where nobody uses them


class KVCacheManager:
    """Allocates blocks as requests need them, finds those that others have computed, and offers those of its own.

    A full block is offered as soon as its tokens are known and it is about to be computed, but found only once the result of
    that step is there: a step may fail.
    """

    __slots__ = ("block_size", "caching", "pool")

    def __init__(self, num_blocks: int, cache: CacheConfig) -> None:
        self.block_size = cache.block_size
        self.pool = BlockPool(num_blocks)
        self.caching = cache.enable_prefix_caching

    def blocks_for(self, num_positions: int) -> int:
        """Blocks that hold the KV of this many positions."""
        return -(-num_positions // self.block_size)

    def check_fits(self, request: Request) -> None:
        """Raise DoesNotFit for a request that could need more blocks than there are."""
        blocks = self.blocks_for(request.max_positions)
        if blocks > self.pool.num_blocks:
            raise DoesNotFit(
                prompt_tokens=len(request.prompt),
                tokens=request.max_positions + 1,
                blocks=blocks,
                num_blocks=self.pool.num_blocks,
                block_size=self.block_size,
            )

    def match(self, request: Request) -> Match:
        """Look up a request, unless it holds blocks. At least its last known token is left to compute."""
        needed = self.blocks_for(request.num_known) - len(request.block_table)
        if request.block_table or not self.caching:
            return Match([], 0, needed)
        pool, found, num_computing = self.pool, list[CachedBlock](), 0
        parent: Parent = request.root
        for index in range((request.num_known - 1) // self.block_size):
            entry = pool.find(self._key(request, index, parent))
            if entry is None or not (entry.ready or entry.priority <= request.rank[0]):
                break
            if entry.ready and not num_computing:
                found.append(entry)
            else:
                num_computing += 1
            parent = entry.number
        in_use = sum(pool.references(entry.block) > 0 for entry in found)
        return Match(found, num_computing, needed - in_use)

    def is_being_computed(self, request: Request, match: Match) -> bool:
        """Whether to let a request wait for others that are just computing at least half of what it would compute itself."""
        left = request.num_known - len(match.found) * self.block_size
        return 2 * match.num_computing * self.block_size >= left

    def admit(self, request: Request, match: Match) -> None:
        """Give a request all blocks for the tokens known now, those found first; they count as computed."""
        pool = self.pool
        table = request.block_table
        for entry in match.found:
            pool.share(entry.block)
            table.append(entry.block)
        request.num_computed = len(table) * self.block_size
        request.num_keyed = len(table)
        request.parent = match.found[-1].number if match.found else request.root
        self.extend(request, request.num_known)
        request.next_full = (request.num_keyed + 1) * self.block_size if self.caching else NEVER
        self._offer(request, request.num_known, ready=False)

    def extend(self, request: Request, num_positions: int) -> list[int]:
        """Extend the block table to cover positions below `num_positions`; returns the new ids, in that order."""
        table = request.block_table
        new = self.pool.allocate(self.blocks_for(num_positions) - len(table))
        table.extend(new)
        request.num_slots = len(table) * self.block_size
        return new

    def computed(self, request: Request, num_positions: int) -> None:
        """The result of a step that computed all positions below `num_positions` is there: others may find their blocks."""
        computing = request.computing
        while computing and computing[0][0] <= num_positions:
            computing.popleft()[1].ready = True
        if num_positions >= request.next_full:
            self._offer(request, num_positions, ready=True)

    def free(self, request: Request, *, forget: bool = False) -> None:
        """Take back all blocks of a request; it would compute its tokens again. With `forget`, none of them is found later."""
        pool = self.pool
        self.withdraw(request)
        if forget:
            for block in request.block_table:
                pool.forget(block)
        pool.free(reversed(request.block_table))
        request.lose_blocks()

    def withdraw(self, request: Request) -> None:
        """Let nobody wait for what a request was to compute. It offers no more blocks then."""
        if request.computing:
            for _, entry in request.computing:
                self.pool.forget(entry.block)
            request.computing.clear()
            request.next_full = NEVER

    def reset(self, requests: Iterable[Request]) -> None:
        """Let nothing that was computed so far be found any more. `requests` are all that hold blocks."""
        self.pool.forget_all()
        for request in requests:
            request.computing.clear()
            request.next_full = NEVER

    def restart(self, requests: Iterable[Request]) -> None:
        """All content of the KV cache is lost, and so are all steps in flight. `requests` are all that are not finished; they
        hold no blocks any more.
        """
        self.pool = BlockPool(self.pool.num_blocks)
        for request in requests:
            request.lose_blocks()
            request.num_in_flight = 0
            request.num_schedulable = request.num_known

    def num_shared(self, request: Request) -> int:
        """Blocks at the beginning of a request's table that others hold too; rarely, and no more than an estimate needs, others
        hold some behind those.
        """
        return sum(1 for _ in takewhile(lambda block: self.pool.references(block) > 1, request.block_table))

    def _offer(self, request: Request, num_positions: int, *, ready: bool) -> None:
        """Let others find the blocks that are full below `num_positions`, whose tokens are known."""
        while request.next_full <= num_positions:
            index = request.num_keyed
            block = request.block_table[index]
            entry = self.pool.offer(block, self._key(request, index, request.parent), request.rank[0], ready=ready)
            if entry.block == block and not ready:
                request.computing.append((request.next_full, entry))
            request.parent = entry.number
            request.num_keyed += 1
            request.next_full += self.block_size

    def _key(self, request: Request, index: int, parent: Parent) -> Key:
        size = self.block_size
        return parent, request.tokens(index * size, (index + 1) * size), request.extra_keys.get(index, ())
