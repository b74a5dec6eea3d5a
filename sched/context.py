"""Context: what a session is between two turns."""

from .block_pool import Parent
from .request import NEVER, Request


class Context:
    """The tokens of a session, and the blocks that hold the KV of the first of them.

    While it has a turn, that has both. Without one, `block_table` covers exactly the positions below `num_computed`, and all of
    them have results.
    """

    __slots__ = (
        "block_table",
        "extra_keys",
        "next_full",
        "num_computed",
        "num_keyed",
        "parent",
        "root",
        "session",
        "token_ids",
        "turn",
    )

    def __init__(self, session: int) -> None:
        self.session = session
        self.turn: Request | None = None  # the unfinished one
        self.token_ids: list[int] = []
        self.root: tuple[str, ...] = ()  # this and the next as of the last turn
        self.extra_keys: dict[int, tuple[str, ...]] = {}
        self.lose_blocks()

    def lose_blocks(self) -> None:
        """It holds no blocks any more, and nothing of it is computed."""
        self.block_table: list[int] = []
        self.num_computed = 0  # this and the following as of a request
        self.num_keyed = 0
        self.parent: Parent = self.root
        self.next_full = NEVER

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Tokens from position `start` to `end`, which is excluded."""
        return tuple(self.token_ids[start:end])
