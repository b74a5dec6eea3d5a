"""SessionContext: the token ids of a session, and where its chunks begin among them."""

from collections.abc import Sequence


class SessionContext:
    """Grows by turns, each a chunk and the kept part of its answer, and is cut from the end. It owns its lists."""

    def __init__(self, tokens: Sequence[int] = (), starts: Sequence[int] = ()) -> None:
        """`starts` are the places where chunks begin, rising."""
        self.tokens = list(tokens)
        self._starts = list(starts)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, chunk: Sequence[int], answer: Sequence[int]) -> None:
        """A turn has ended."""
        self._starts.append(len(self.tokens))
        self.tokens += chunk
        self.tokens += answer

    def put_answer(self, start: int, answer: Sequence[int]) -> None:
        """Have the last answer, which begins there, be this."""
        self.tokens[start:] = answer

    def cut(self, length: int) -> None:
        """Keep so many tokens. Of a chunk, what is left of it."""
        del self.tokens[length:]
        while self._starts and self._starts[-1] >= length:
            self._starts.pop()

    @property
    def has_chunk(self) -> bool:
        """Whether there is a chunk to drop."""
        return bool(self._starts)

    def drop_chunk(self) -> None:
        """Take away the last chunk with its answer."""
        del self.tokens[self._starts.pop() :]

    def with_turn(self, chunk: Sequence[int], answer: Sequence[int]) -> "SessionContext":
        """A copy that goes on with this turn; with an empty chunk, just a copy."""
        copy = SessionContext(self.tokens, self._starts)
        if chunk:
            copy.add(chunk, answer)
        return copy
