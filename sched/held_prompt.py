"""HeldPrompt: the KV of a prompt, kept for several answers to it."""

from collections.abc import Sequence

from .block_pool import Parent


class HeldPrompt:
    """Blocks with a reference of their own, with which a sibling begins that enters a row without blocks.

    The last one is copied, for the leader writes behind the positions that count. There are none any more once others needed
    them.
    """

    __slots__ = ("block_table", "members", "next_full", "num_computed", "num_keyed", "parent")

    def __init__(self, blocks: Sequence[int], *, num_computed: int, num_keyed: int, parent: Parent, next_full: int) -> None:
        self.block_table = list(blocks)
        self.num_computed = num_computed  # positions
        self.num_keyed = num_keyed  # these three as of a request
        self.parent = parent
        self.next_full = next_full
        self.members = 0  # unfinished requests that it is for
