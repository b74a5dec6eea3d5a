"""BlockPool: which blocks of the KV cache are in use, by how many, and what the others still hold."""

import itertools
from collections import OrderedDict
from collections.abc import Iterable


class CachedBlock:
    """The content of a block that later requests may find: an entry of the prefix cache.

    `key` is (what comes before: the number of an entry, or the root; the block's tokens; extra keys). A number is never used
    again, so that a key stands for the whole prefix exactly, and no hash has to be trusted.
    """

    __slots__ = ("block", "key", "number", "priority", "ready")

    def __init__(self, block: int, key: "Key", number: int, priority: int, *, ready: bool) -> None:
        self.block = block
        self.key = key
        self.number = number
        self.priority = priority  # of the request that computes it
        self.ready = ready  # whether the KV is known to be computed


Parent = int | tuple[str, ...]
Key = tuple[Parent, tuple[int, ...], tuple[str, ...]]


class BlockPool:
    """Ids 0 .. num_blocks - 1. Every operation is O(1) a block, and deterministic.

    A block in use has references, one for each request whose table holds it. A free block that is cached keeps its content
    until it is handed out again, the one freed longest ago first; blocks without such content go before all of them.
    """

    __slots__ = ("_blank", "_cached", "_entries", "_numbers", "_of_block", "_references", "num_blocks", "num_parted")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # A stack: the block freed last is the likeliest to be in a processor cache. Fresh ones come lowest id first.
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # free ones with content, freed longest ago first
        self._references = [0] * num_blocks
        self._entries: dict[Key, CachedBlock] = {}
        self._of_block: dict[int, CachedBlock] = {}
        self._numbers = itertools.count()
        self.num_parted = 0  # references dropped so far of blocks that others held too

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._blank) + len(self._cached)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks out of the pool, with one reference each. The caller has made sure that there are as many."""
        blank, references = self._blank, self._references
        assert count <= self.num_free, f"{count} blocks wanted, {self.num_free} free"
        blocks = []
        for _ in range(count):
            block = blank.pop() if blank else self._evict()
            references[block] = 1
            blocks.append(block)
        return blocks

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        del self._entries[self._of_block.pop(block).key]
        return block

    def share(self, block: int) -> None:
        """Add a reference to a block with content, be it in use or free."""
        if not self._references[block]:
            del self._cached[block]
        self._references[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each. Of those that become free, the first without content is handed out last, the first with
        content first.
        """
        references = self._references
        for block in blocks:
            references[block] -= 1
            if references[block]:
                self.num_parted += 1
            else:
                self._put(block)

    def _put(self, block: int) -> None:
        if block in self._of_block:
            self._cached[block] = None
        else:
            self._blank.append(block)

    def references(self, block: int) -> int:
        """How many requests hold a block."""
        return self._references[block]

    def find(self, key: Key) -> CachedBlock | None:
        """The block with this content, ready or not."""
        return self._entries.get(key)

    def offer(self, block: int, key: Key, priority: int = 0, *, ready: bool) -> CachedBlock:
        """Let a block in use be found under a key. If another block has that content already, that one stays the one found. The
        block itself is found under one key only, the last.

        Returns the entry that the next block's key names.
        """
        entry = self._entries.get(key)
        if entry is None:
            self.forget(block)
            entry = self._entries[key] = self._of_block[block] = CachedBlock(
                block, key, next(self._numbers), priority, ready=ready
            )
        return entry

    def forget(self, block: int) -> None:
        """Let a block be found no more. Those behind it cannot be found either then; does nothing for one without content."""
        entry = self._of_block.pop(block, None)
        if entry is not None:
            del self._entries[entry.key]
            if block in self._cached:
                del self._cached[block]
                self._blank.append(block)

    def forget_all(self) -> None:
        """Let no block be found any more."""
        self._blank.extend(self._cached)
        self._cached.clear()
        self._entries.clear()
        self._of_block.clear()

    def free_blocks(self) -> tuple[int, ...]:
        """All free ids, for the integrity check."""
        return (*self._cached, *self._blank)

    def blank_blocks(self) -> tuple[int, ...]:
        """The free ones without content."""
        return tuple(self._blank)

    def entries(self) -> tuple[CachedBlock, ...]:
        """All that can be found, for the integrity check."""
        return tuple(self._entries.values())
