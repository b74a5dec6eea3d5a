"""Logprobs as callers see them: how likely a token was, and what else was likely in its place."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import eq
from typing import overload

from ...ipc.messages.outputs import TokenLogprobs


@dataclass(slots=True)
class Logprob:
    """One token in one place."""

    logprob: float
    rank: int | None = None  # 1: the likeliest. None: not among those that were ranked
    decoded_token: str | None = None  # what the text gains by it; "" within a character that a later token completes
    token_bytes: bytes = b""  # the token's own


Position = dict[int, Logprob]  # the chosen token first, then the likeliest
SampleLogprobs = Sequence[Position]
PromptLogprobs = Sequence[Position | None]  # None for the first token, which nothing comes before


class FlatLogprobs(Sequence[Position]):
    """The same as a list of dicts, in columns: one object for the garbage collector instead of some for each token.

    Indexing builds the dict of a place; a slice is in columns again. The columns are for reading.
    """

    def __init__(self) -> None:
        self.starts = array("q", [0])  # entries of place i: starts[i] .. starts[i + 1] - 1
        self.token_ids = array("q")
        self.logprobs = array("d")
        self.ranks = array("q")  # 0: None
        self.decoded_tokens: list[str | None] = []
        self.tokens_bytes: list[bytes] = []

    def append(self, position: Position) -> None:
        """Add a place."""
        for token, entry in position.items():
            self.token_ids.append(token)
            self.logprobs.append(entry.logprob)
            self.ranks.append(entry.rank or 0)
            self.decoded_tokens.append(entry.decoded_token)
            self.tokens_bytes.append(entry.token_bytes)
        self.starts.append(len(self.token_ids))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, index: int) -> Position: ...
    @overload
    def __getitem__(self, index: slice) -> "FlatLogprobs": ...
    def __getitem__(self, index: int | slice) -> "Position | FlatLogprobs":
        if isinstance(index, int):
            if not -len(self) <= index < len(self):
                raise IndexError(f"there are {len(self)} places, got {index}")
            return self._at(index % len(self))
        part = FlatLogprobs()
        for place in range(*index.indices(len(self))):
            part.append(self._at(place))
        return part

    def _at(self, place: int) -> Position:
        return {
            self.token_ids[entry]: Logprob(
                self.logprobs[entry], self.ranks[entry] or None, self.decoded_tokens[entry], self.tokens_bytes[entry]
            )
            for entry in range(self.starts[place], self.starts[place + 1])
        }

    def __iter__(self) -> Iterator[Position]:
        return map(self._at, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FlatLogprobs({list(self)!r})"


class LogprobDecoder:
    """Puts text to the logprobs of one sequence of tokens, which come in order.

    The texts of the chosen tokens, joined, are the text of the sequence, but for special tokens, which show here, and for an
    unfinished character at its end, whose tokens have none.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        """`bytes_of` gives the bytes of a token."""
        self._bytes_of = bytes_of
        self._unfinished = b""  # the beginning of a character

    def decode(self, token: int, logprobs: TokenLogprobs) -> Position:
        """The next token of the sequence, with what was likely in its place."""
        position = {token: Logprob(logprobs.logprob, logprobs.rank, self._text(token), self._bytes_of(token))}
        likeliest = memoryview(logprobs.top_logprobs).cast("f")
        if logprobs.top_ids:
            for rank, (other, logprob) in enumerate(zip(memoryview(logprobs.top_ids).cast("i"), likeliest, strict=True), 1):
                if other != token:
                    position[other] = Logprob(logprob, rank, self._text(other), self._bytes_of(other))
        else:
            for other, logprob in enumerate(likeliest):  # the whole vocabulary, unranked
                if other != token:
                    position[other] = Logprob(logprob, None, self._text(other), self._bytes_of(other))
        self.follow(token)
        return position

    def follow(self, token: int) -> None:
        """A token of the sequence, whose logprobs nobody wants."""
        self._unfinished = unfinished_end(self._unfinished + self._bytes_of(token))

    def _text(self, token: int) -> str:
        """What a token adds in this place."""
        joined = self._unfinished + self._bytes_of(token)
        end = len(joined) - len(unfinished_end(joined))
        return joined[:end].decode(errors="replace")


def unfinished_end(text: bytes) -> bytes:
    """The beginning of a UTF-8 character at the end of `text`, if more bytes could complete it."""
    for length in range(1, min(3, len(text)) + 1):
        lead = text[-length]
        if lead >= 0xC0:
            needed = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            tail = text[-length:]
            return tail if lead < 0xF8 and length < needed and _may_go_on(tail) else b""
        if lead < 0x80:
            return b""
    return b""


def _may_go_on(tail: bytes) -> bool:
    """Whether some bytes behind `tail` make it a character: the decoder complains about its end only."""
    try:
        tail.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False
