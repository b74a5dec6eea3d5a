"""What a session is given: its options, and chunks of input, which wait in a queue for their turn."""

import asyncio
from collections import deque
from dataclasses import dataclass

from ...ipc.messages.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What holds for all of a session."""

    external_id: str  # the caller's, or a made-up one
    params: SamplingParams  # of chunks that bring none
    priority: int
    cache_salt: str
    idle_timeout: float  # seconds


@dataclass(frozen=True, slots=True)
class Chunk:
    """Input for one turn."""

    number: int
    text: str | None  # None when it was given as token ids
    tokens: list[int]
    params: SamplingParams
    keep_last_token: bool


class ChunkQueue:
    """Chunks in order, at most so many: whoever has more waits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: deque[Chunk] = deque()
        self._shut = False
        self._moved = asyncio.Event()  # it has become shorter, or nobody waits any more

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def num_tokens(self) -> int:
        """Of all the chunks."""
        return sum(len(chunk.tokens) for chunk in self._chunks)

    async def wait_room(self) -> None:
        """Return when there is room for one more, or it is shut. For one task at a time."""
        while len(self._chunks) >= self._limit and not self._shut:
            self._moved.clear()
            await self._moved.wait()

    def put(self, chunk: Chunk) -> None:
        """Add one, behind `wait_room`."""
        self._chunks.append(chunk)

    def take_first(self) -> Chunk:
        """The one whose turn it is."""
        self._moved.set()
        return self._chunks.popleft()

    def drop_last(self) -> None:
        """Take back the latest one."""
        self._moved.set()
        self._chunks.pop()

    def shut(self, *, clear: bool) -> None:
        """Nobody waits for room any more; what is there stays, or goes with `clear`."""
        self._shut = True
        self._moved.set()
        if clear:
            self._chunks.clear()
