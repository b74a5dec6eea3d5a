"""BlockPool: which blocks of the KV cache are free."""

from collections.abc import Iterable


class BlockPool:
    """Ids 0 .. num_blocks - 1, each either free or handed out. Every operation is O(1) a block, and deterministic."""

    __slots__ = ("_free", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A stack: the block freed last is the likeliest to be in a processor cache. Fresh ones come lowest id first.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks out of the pool. The caller has made sure that there are as many."""
        free = self._free
        assert count <= len(free), f"{count} blocks wanted, {len(free)} free"
        return [free.pop() for _ in range(count)]

    def free(self, blocks: Iterable[int]) -> None:
        """Give blocks back; the first of them is handed out last."""
        self._free.extend(blocks)

    def free_blocks(self) -> tuple[int, ...]:
        """All free ids, for the integrity check."""
        return tuple(self._free)
