"""KVCacheManager: each request's block table, and the prefixes that requests share."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..ipc.messages.config import CacheConfig
from .block_pool import BlockPool, CachedBlock, Key, Parent
from .context import Context
from .errors import DoesNotFit
from .held_prompt import HeldPrompt
from .request import NEVER, NOT_NOW, Request


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

    __slots__ = ("_copies", "block_size", "caching", "pool", "prefix_hits", "prefix_queries")

    def __init__(self, num_blocks: int, cache: CacheConfig) -> None:
        self.block_size = cache.block_size
        self.pool = BlockPool(num_blocks)
        self.caching = cache.enable_prefix_caching
        self.prefix_queries = 0  # prompt tokens looked up for requests that entered a row for the first time
        self.prefix_hits = 0  # those of them that were found
        self._copies: list[tuple[int, int]] = []  # since the last step was planned

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

    def needed(self, request: Request, found: Sequence[CachedBlock]) -> int:
        """Blocks that a request without a row needs, for all tokens known now, besides those that it holds, and those that it
        shares because they were found or else are held for it. One that it has to copy counts.
        """
        if request.block_table:
            return self.blocks_for(request.num_known) - len(request.block_table) + self.has_to_copy(request)
        held = request.beginning
        shared = len(found) if found or held is None else len(held.block_table) - 1
        return self.blocks_for(request.num_known) - shared

    def has_to_copy(self, request: Request) -> bool:
        """Whether a request that holds blocks would write to one of them that others hold too when it enters a row.

        It is a turn that has taken over a session's blocks, the last of which it goes on to fill.
        """
        begun = request.num_cached_tokens < 0 and request.num_computed % self.block_size
        return bool(begun) and self.pool.references(request.block_table[-1]) > 1

    def match(self, request: Request) -> Match:
        """Look up a request, unless it holds blocks, or its whole prompt is held for it. At least its last known token is left
        to compute.
        """
        held = request.beginning
        known = request.block_table or (held is not None and not request.output)
        if known or not (self.caching and request.reads_prefix_cache):
            return self.match_of(request, [])
        pool, found, num_computing = self.pool, list[CachedBlock](), 0
        parent: Parent = request.root
        for index in range((request.num_known - 1) // self.block_size):
            entry = pool.find(self.key(request, index, parent))
            if entry is None or not (entry.ready or entry.priority <= request.rank[0]):
                break
            if entry.ready and not num_computing:
                found.append(entry)
            else:
                num_computing += 1
            parent = entry.number
        if held is not None and len(found) * self.block_size <= held.num_computed:
            return self.match_of(request, [])
        return self.match_of(request, found, num_computing)

    def match_of(self, request: Request, found: list[CachedBlock], num_computing: int = 0) -> Match:
        """The match of a request for which these are found."""
        free = sum(not self.pool.references(entry.block) for entry in found)
        return Match(found, num_computing, self.needed(request, found) + free)

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
        if self.caching and request.reads_prefix_cache and request.num_cached_tokens < 0:
            self.prefix_queries += len(request.prompt)
            self.prefix_hits += min(len(table) * self.block_size, len(request.prompt))
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

    def hold(self, leader: Request, num_positions: int) -> HeldPrompt:
        """Hold the KV of a request's first positions for others.

        They are fewer than those that it has results of, and the tokens that the others know begin with those of all blocks
        that it offers.
        """
        blocks = leader.block_table[: num_positions // self.block_size + 1]
        for block in blocks:
            self.pool.share(block)
        return HeldPrompt(
            blocks,
            num_computed=num_positions,
            num_keyed=leader.num_keyed,
            parent=leader.parent,
            next_full=leader.next_full,
        )

    def enter(self, request: Request, match: Match) -> None:
        """Give a request that is about to enter a row all blocks for the tokens known now, as in its `match`."""
        held = request.beginning
        if request.block_table:
            self._own_last(request)
            self.extend(request, request.num_known)
        elif held is None or match.found:
            self.admit(request, match)
        else:
            self._begin(request, held)

    def _begin(self, request: Request, held: HeldPrompt) -> None:
        *shared, last = held.block_table
        for block in shared:
            self.pool.share(block)
        [own] = self.pool.allocate(1)
        request.block_table = [*shared, own]
        if held.num_computed % self.block_size:
            self._copies.append((last, own))  # whoever gets `last` when it is held no more writes to it after that
        request.num_computed = held.num_computed
        request.num_keyed, request.parent, request.next_full = held.num_keyed, held.parent, held.next_full
        self.extend(request, request.num_known)

    def _own_last(self, request: Request) -> None:
        """Let a turn write to the block in whose midst it begins: others keep what was there, and nobody finds it there."""
        last = request.block_table[-1]
        if self.has_to_copy(request):
            [own] = self.pool.allocate(1)
            request.block_table[-1] = own
            self.pool.free([last])
            self._copies.append((last, own))
        elif request.num_cached_tokens < 0 and request.num_computed % self.block_size:
            self.pool.forget(last)

    def take_copies(self) -> list[tuple[int, int]]:
        """Blocks that the step in hand has to copy, (from, to), before it computes anything."""
        copies, self._copies = self._copies, []
        return copies

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
            request.next_full = NOT_NOW

    def reset(self, requests: Iterable[Request], others: Iterable[HeldPrompt | Context] = ()) -> None:
        """Let nothing be found any more that was computed so far, nor what is computed behind it. These are all that hold
        blocks.
        """
        self.pool.forget_all()
        for request in requests:
            request.computing.clear()
            request.next_full = NEVER
        for other in others:
            other.next_full = NEVER

    def give_up_last(self, request: Request) -> None:
        """Free the block that a turn would have to copy. It computes again what that holds."""
        self.pool.free([request.block_table.pop()])
        request.num_slots = request.num_computed = len(request.block_table) * self.block_size

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
        """Blocks at the beginning of a request's table that others hold too. An estimate where others hold some behind one that
        is its own, which is rare.
        """
        table = request.block_table
        return bisect_left(table, True, key=lambda block: self.pool.references(block) == 1)

    def yields(self, holder: Request | HeldPrompt | Context) -> bool:
        """Whether it is worth while to take its blocks from a holder: some become free, and of a held prompt more than the last
        one, which those that run in the others do not hold.
        """
        if isinstance(holder, HeldPrompt):
            return self.pool.references(holder.block_table[-2:][0]) == 1
        return self.owns(holder)

    def owns(self, holder: Request | HeldPrompt | Context) -> bool:
        """Whether nobody else holds one of a holder's blocks."""
        return any(self.pool.references(block) == 1 for block in reversed(holder.block_table))

    def _offer(self, request: Request, num_positions: int, *, ready: bool) -> None:
        """Let others find the blocks that are full below `num_positions`, whose tokens are known."""
        while request.next_full <= num_positions:
            index = request.num_keyed
            block = request.block_table[index]
            entry = self.pool.offer(block, self.key(request, index, request.parent), request.rank[0], ready=ready)
            if entry.block == block and not ready:
                request.computing.append((request.next_full, entry))
            request.parent = entry.number
            request.num_keyed += 1
            request.next_full += self.block_size

    def key(self, request: Request | Context, index: int, parent: Parent) -> Key:
        """Under what a full block is found, the one before which has this number; `parent` is the root for the first."""
        size = self.block_size
        return parent, request.tokens(index * size, (index + 1) * size), request.extra_keys.get(index, ())
