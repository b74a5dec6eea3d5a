"""KVCacheManager: each request's block table, and the promise that an admitted request always gets its next block."""

from .block_pool import BlockPool
from .request import Request


class KVCacheManager:
    """Reserves blocks for a request's worst case when it is admitted, and allocates them as its tokens need them.

    A reservation is a count, not ids: the sum of all never exceeds the pool, so allocation cannot fail.
    """

    __slots__ = ("block_size", "num_reserved", "pool")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.num_reserved = 0

    def blocks_for(self, num_positions: int) -> int:
        """Blocks that hold the KV of this many positions."""
        return -(-num_positions // self.block_size)

    def reserve(self, request: Request) -> bool:
        """Reserve the worst case of a request that holds nothing; False, changing nothing, if it does not fit now."""
        if self.missing(request) > 0:
            return False
        needed = self.blocks_for(request.max_positions)
        self.num_reserved += needed
        request.num_reserved_blocks = needed
        return True

    def missing(self, request: Request) -> int:
        """How many reserved blocks others would have to give up before the request's worst case fits; at most 0: none."""
        return self.num_reserved + self.blocks_for(request.max_positions) - self.pool.num_blocks

    def allocate(self, request: Request, num_positions: int) -> list[int]:
        """Extend the block table to cover positions below `num_positions`; returns the new ids, in that order."""
        table = request.block_table
        new = self.pool.allocate(self.blocks_for(num_positions) - len(table))
        table.extend(new)
        request.num_slots = len(table) * self.block_size
        return new

    def free(self, request: Request) -> None:
        """Take back the blocks and the reservation."""
        self.pool.free(reversed(request.block_table))
        self.num_reserved -= request.num_reserved_blocks
        request.block_table = []
        request.num_slots = 0
        request.num_reserved_blocks = 0
