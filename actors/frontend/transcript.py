"""Transcript: all of one answer so far, of which each output shows a part."""

from collections.abc import Sequence

from .logprobs import FlatLogprobs, Position, SampleLogprobs
from .view import View


class Transcript:
    """Token ids, text and logprobs of an answer, which grow until `cut`. Text is what has been released to be shown."""

    def __init__(self, *, logprobs: bool, flat: bool = False) -> None:
        """`logprobs`: whether there will be any; `flat`: in columns."""
        self.token_ids: list[int] = []
        self.logprobs: FlatLogprobs | list[Position] | None = (FlatLogprobs() if flat else []) if logprobs else None
        self.cumulative_logprob: float | None = 0.0 if logprobs else None
        self._pieces: list[str] = []
        self._joined = ""  # the first of them, as far as anybody has wanted the whole text
        self._num_joined = 0

    def add_text(self, text: str) -> None:
        """More text."""
        if text:
            self._pieces.append(text)

    def add_logprobs(self, position: Position, logprob: float) -> None:
        """The logprobs of the next token, whose own is `logprob`."""
        assert self.logprobs is not None
        assert self.cumulative_logprob is not None
        self.logprobs.append(position)
        self.cumulative_logprob += logprob

    @property
    def num_characters(self) -> int:
        """The length of the text."""
        return sum(map(len, self._pieces))

    def cut(self, tokens: int, characters: int, told: tuple[int, int]) -> tuple[int, int]:
        """Keep the first so many tokens and characters; what was handed out does not change. Returns where the mark `told`
        lies now, at the end if that.
        """
        shown = sum(map(len, self._pieces[: told[1]]))
        text = "".join(self._pieces)[:characters]
        self._pieces, self._joined, self._num_joined = [text[:shown], text[shown:]], "", 0
        self.token_ids = self.token_ids[:tokens]
        if self.logprobs is not None:
            self.logprobs = self.logprobs[:tokens]
            self.cumulative_logprob = sum((next(iter(place.values())).logprob for place in self.logprobs), 0.0)
        return min(told[0], tokens), 1

    @property
    def mark(self) -> tuple[int, int]:
        """Where it ends now, for the methods below."""
        return len(self.token_ids), len(self._pieces)

    def text(self, since: tuple[int, int]) -> str:
        """The text since a mark."""
        if since[1]:
            return "".join(self._pieces[since[1] :])
        # Whoever asks for the whole again and again pays for what is new, and for one copy.
        self._joined += "".join(self._pieces[self._num_joined :])
        self._num_joined = len(self._pieces)
        return self._joined

    def tokens(self, since: tuple[int, int], *, view: bool) -> Sequence[int]:
        """The token ids since a mark: a list, or, of all there are, a view."""
        return View(self.token_ids) if view else self.token_ids[since[0] :]

    def logprobs_of(self, since: tuple[int, int], *, view: bool) -> SampleLogprobs | None:
        """The logprobs since a mark, as `tokens`; None if there are none at all."""
        if self.logprobs is None:
            return None
        return View(self.logprobs) if view else self.logprobs[since[0] :]
