"""Turn: a chunk of a session's input and the answer to it. To the core it is a request like any other."""

from collections.abc import Callable

from .answer import Answer
from .live_request import LiveRequest
from .outputs import ChunkBoundary
from .session_input import Chunk


class Turn:
    """Listens to its request on the session's behalf."""

    def __init__(
        self,
        chunk: Chunk,
        start: int,
        live: LiveRequest,
        on_news: Callable[["Turn"], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        """`start` is the length of the context before it."""
        self.chunk = chunk
        self.start = start
        self.live = live
        self.sent = False
        self.boundary: ChunkBoundary | None = None
        self._on_news = on_news
        self._on_error = on_error

    def wake(self) -> None:
        """See Listener."""
        self._on_news(self)

    def put_error(self, error: Exception) -> None:
        """See Listener."""
        self._on_error(error)

    @property
    def answer(self) -> Answer:
        """Its answer, also once that has ended."""
        (answer,) = self.live.answers.values()
        return answer

    @property
    def answer_start(self) -> int:
        """Where the answer begins in the context."""
        return self.start + len(self.chunk.tokens)

    @property
    def length(self) -> int:
        """Tokens of the context up to the last one that has come."""
        return self.answer_start + len(self.answer.token_ids)

    def num_kept(self) -> int:
        """How many tokens of an answer that has ended stay in the context.

        All of one that was cut, and with `keep_last_token`; else all but the last one, which was sampled and never computed,
        or, before a stop string that is not shown, all that hold nothing of it.
        """
        answer = self.answer
        if self.chunk.keep_last_token or answer.finish_reason == "interrupt":
            return len(answer.token_ids)
        if isinstance(answer.stop_reason, str) and not self.chunk.params.include_stop_str_in_output:
            return answer.tokens_within(answer.num_characters)
        return max(len(answer.token_ids) - 1, 0)

    def num_wanted(self, keep_tokens: int | None, keep_chars: int | None) -> int | None:
        """How many tokens of the answer an interruption keeps. None: it has ended, and stays as it is, for nothing that is told
        or heard of it is to go. ValueError for more than there are.
        """
        answer = self.answer
        check_keep(keep_tokens, keep_chars, len(answer.token_ids), answer.num_characters)
        if keep_tokens is not None:
            return keep_tokens
        if keep_chars is None:
            wanted = answer.num_told
            whole = wanted == len(answer.token_ids)
        else:
            wanted = answer.tokens_within(keep_chars)
            whole = keep_chars == answer.num_characters and wanted <= self.num_kept()
        return None if whole and answer.finished else wanted

    def cut(self, kept: int) -> None:
        """Of the answer, which has ended, this many tokens are left."""
        if kept < len(self.answer.token_ids):
            self.live.interrupt(kept)

    def end(self, context_length: int) -> None:
        """The answer has ended, and the context is this long now."""
        answer = self.answer
        assert answer.finish_reason is not None
        self.live.sent = None  # it holds the whole context once more
        self.boundary = ChunkBoundary(
            self.chunk.number, context_length, answer.finish_reason, answer.stop_reason, len(answer.token_ids)
        )


def check_keep(keep_tokens: int | None, keep_chars: int | None, tokens: int, characters: int) -> None:
    """Raise ValueError where an interruption is to keep both, or more than these of its answer."""
    if keep_tokens is not None and keep_chars is not None:
        raise ValueError(f"keep_tokens and keep_chars exclude each other, got {keep_tokens!r:.100} and {keep_chars!r:.100}")
    for field, value, most in (("keep_tokens", keep_tokens, tokens), ("keep_chars", keep_chars, characters)):
        if value is not None and (type(value) is not int or not 0 <= value <= most):
            raise ValueError(
                f"{field} must be an integer from 0 to {most}, which is what has come of the answer; got {value!r:.100}"
            )
