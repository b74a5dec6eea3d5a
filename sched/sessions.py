"""Sessions: contexts that grow by turns, and keep their KV between two of them.

A turn is a request like any other, whose prompt is the session's context and what is new. When it begins it takes the context's
blocks over, cut to what it goes on from; however it ends, the context takes over its tokens and, where they can be trusted, its
blocks. What a fork shares, the partial block at its end too, is copied by whoever enters a row and would write to it.
"""

from collections.abc import Collection, Iterable
from itertools import takewhile

from msgspec.structs import replace

from ..ipc.messages.requests import AddRequest
from .batch import Batch
from .context import Context
from .errors import SessionMismatch
from .kv_cache_manager import KVCacheManager
from .request import NEVER, NOT_NOW, Request


class Sessions:
    """All open sessions. Those without a turn wait for nothing, and hold no row."""

    __slots__ = ("_in_flight", "_manager", "contexts", "evicted", "idle")

    def __init__(self, manager: KVCacheManager, in_flight: Collection[Batch]) -> None:
        """`in_flight` are the steps without a result, now and later."""
        self._manager = manager
        self._in_flight = in_flight
        self.contexts: dict[int, Context] = {}
        self.idle: dict[int, Context] = {}  # those that hold blocks, the one idle longest first
        self.evicted: set[int] = set()  # those without a turn that have tokens and hold no blocks

    def whole(self, request: AddRequest) -> AddRequest:
        """A turn as it would be without its session, with all its prompt. Raises SessionMismatch where it cannot be one."""
        context = self.contexts.get(request.session)
        name = f"turn {request.request} of session {request.session}"
        if request.siblings:
            raise SessionMismatch(f"{name} has {len(request.siblings)} siblings, a turn has none")
        if context is not None and context.turn is not None:
            raise SessionMismatch(f"{name} was added while turn {context.turn.request_id} is unfinished")
        known = [] if context is None else context.token_ids
        if request.base > len(known):
            raise SessionMismatch(f"{name} follows {request.base} tokens, but {len(known)} are known of the session")
        return replace(request, prompt=[*known[: request.base], *request.prompt]) if request.base else request

    def begin(self, turn: Request, base: int) -> None:
        """A turn goes on from the first `base` tokens of its session's context, which has no other turn, and takes the blocks
        over, those behind too as far as its prompt is what they hold. At least its last token is left to compute.
        """
        context = self.contexts.get(turn.session)
        if context is None:
            context = self.contexts[turn.session] = Context(turn.session)
        for length in (_num_common(turn, context, base), base, 0):
            self._cut(context, min(length, turn.num_known - 1))
            if turn.root == context.root and not _other_keys(turn, context):
                break
        if context.block_table:
            turn.block_table = context.block_table
            turn.num_slots = len(context.block_table) * self._manager.block_size
            turn.num_computed = context.num_computed
            turn.num_keyed, turn.parent, turn.next_full = context.num_keyed, context.parent, context.next_full
            if context.next_full == NOT_NOW:  # from the first block on, all of them may be found
                turn.num_keyed, turn.parent, turn.next_full = 0, turn.root, self._manager.block_size
        context.turn, context.token_ids = turn, []
        context.root, context.extra_keys = turn.root, turn.extra_keys
        context.lose_blocks()
        self._settle(context)

    def end(self, turn: Request) -> None:
        """A turn has ended, and is about to free its blocks: its session, unless it was closed, keeps what is of use."""
        context = self.contexts.get(turn.session)
        if context is not None:
            context.turn, context.token_ids = None, [*turn.prompt, *turn.output]
            self._share(turn, context, self._num_certain(turn))
            self._settle(context)

    def truncate(self, session: int, length: int) -> None:
        """Let go of a context behind so many tokens. Nothing happens to one that is unknown, has a turn or is not that long."""
        context = self.contexts.get(session)
        if context is not None and context.turn is None and length < len(context.token_ids):
            self._cut(context, length)
            del context.token_ids[length:]
            self._settle(context)

    def fork(self, session: int, child: int, length: int) -> None:
        """Begin a session with so many tokens of another one's context, to which all that is known of its turn belongs.

        Raises SessionMismatch, and nothing has changed, if there are not so many, or the child is open already.
        """
        if child in self.contexts:
            raise SessionMismatch(f"session {session} was forked as session {child}, which is open already")
        context = self.contexts.get(session, Context(session))
        source = context.turn or context
        tokens = source.tokens(0, length)
        if len(tokens) < length:
            raise SessionMismatch(
                f"session {session} was forked as session {child} behind {length} tokens, but {len(tokens)} are known of it"
            )
        computed = source.num_computed if context.turn is None else self._num_certain(context.turn)
        forked = self.contexts[child] = Context(child)
        forked.token_ids = list(tokens)
        self._share(source, forked, min(length, computed))
        self._settle(forked)

    def close(self, session: int) -> Request | None:
        """Forget a session. Returns its unfinished turn, which keeps its blocks."""
        context = self.contexts.pop(session, None)
        if context is None:
            return None
        turn, context.turn = context.turn, None
        context.token_ids = []
        self._cut(context, 0)
        self._settle(context)
        return turn

    def evict(self, context: Context) -> None:
        """Free the blocks of one without a turn, which keeps its tokens."""
        self._cut(context, 0)
        self._settle(context)

    def evict_all(self) -> None:
        """Free the blocks of all."""
        for context in list(self.idle.values()):
            self.evict(context)

    def lost(self) -> None:
        """The pool is another one: nobody holds a block any more."""
        for context in list(self.idle.values()):
            context.lose_blocks()
            self._settle(context)

    def _settle(self, context: Context) -> None:
        """Something has happened to a session: it is the last to be idle, if it is."""
        session = context.session
        self.idle.pop(session, None)
        self.evicted.discard(session)
        if context.block_table:
            self.idle[session] = context
        elif context.token_ids:
            self.evicted.add(session)

    def _num_certain(self, turn: Request) -> int:
        """Positions of a turn that have results. Those behind are not trusted: a step may fail."""
        starts = [
            start
            for batch in self._in_flight
            for request, start in zip(batch.requests, batch.starts, strict=True)
            if request is turn
        ]
        return min([turn.num_computed, *starts])

    def _share(self, source: Request | Context, context: Context, num_positions: int) -> None:
        """Let a context, which holds no blocks, hold those of the first positions of a source too."""
        context.root, context.extra_keys = source.root, source.extra_keys
        context.block_table = source.block_table[: self._manager.blocks_for(num_positions)]
        for block in context.block_table:
            self._manager.pool.share(block)
        context.num_computed = num_positions
        context.num_keyed, context.parent, context.next_full = source.num_keyed, source.parent, source.next_full
        self._find_key(context)

    def _cut(self, context: Context, num_positions: int) -> None:
        """Free what is behind so many positions."""
        if num_positions < context.num_computed:
            blocks = self._manager.blocks_for(num_positions)
            self._manager.pool.free(reversed(context.block_table[blocks:]))
            del context.block_table[blocks:]
            context.num_computed = num_positions
            self._find_key(context)

    def _find_key(self, context: Context) -> None:
        """What is offered next after less is left than was offered: what is known of the block before it is looked up, from the
        root on. If not all of that is there any more, nothing is before the next turn.
        """
        manager = self._manager
        full = context.num_computed // manager.block_size
        if context.num_keyed <= full:
            return
        context.num_keyed, context.parent = full, context.root
        if context.next_full in (NEVER, NOT_NOW):
            return
        for index in range(full):
            entry = manager.pool.find(manager.key(context, index, context.parent))
            if entry is None:
                context.next_full = NOT_NOW
                return
            context.parent = entry.number
        context.next_full = (full + 1) * manager.block_size


def _num_common(turn: Request, context: Context, base: int) -> int:
    """How far the turn's prompt is what the context holds KV of. Nothing up to `base` is compared: it is the same."""
    pairs = zip(turn.prompt[base:], context.token_ids[base : context.num_computed], strict=False)
    return base + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _other_keys(turn: Request, context: Context) -> bool:
    """Whether the KV of the context depends on something else than the same tokens of the turn."""
    blocks: Iterable[int] = turn.extra_keys.keys() | context.extra_keys.keys()
    return any(turn.extra_keys.get(i) != context.extra_keys.get(i) for i in blocks if i < len(context.block_table))
