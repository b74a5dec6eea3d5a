"""Answer: one of the answers to a request, from the core's deltas to what its outputs show."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from ...ipc.messages.outputs import FinishReason, TokenDelta, TokenLogprobs
from ...ipc.messages.sampling import RequestOutputKind, SamplingParams
from .detokenizer import Detokenizer
from .logprobs import LogprobDecoder
from .outputs import CompletionOutput
from .stop_strings import StopStrings
from .transcript import Transcript


class Answer:
    """Owns the text, the end and the deliveries of one answer. To the core it is a request of its own."""

    def __init__(
        self,
        request: int,
        index: int,
        params: SamplingParams,
        detokenizer: Detokenizer,
        bytes_of: Callable[[int], bytes],
        *,
        cuttable: bool = False,
    ) -> None:
        """`request` is its number in the engine, `index` the one among its siblings; `cuttable`: for `cut`, `tokens_within`."""
        self.request = request
        self.index = index
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.deaths = 0  # of cores that had it, without a token of it since
        self.deaths_alone = 0  # those at which it was in flight alone
        self.preemptions = 0
        self.last_token_time = 0.0
        self._params = params
        self._detokenizer = detokenizer
        self._stops = StopStrings(params.stop, include=params.include_stop_str_in_output) if params.stop else None
        self._logprobs = LogprobDecoder(bytes_of) if params.logprobs is not None else None
        self._transcript = Transcript(logprobs=params.logprobs is not None, flat=params.flat_logprobs)
        self._ends: list[int] | None = [] if cuttable else None  # characters of text up to the end of each token
        self._decoded = 0  # characters, with those held back and those of a stop string
        self._told = (0, 0)  # the mark up to which outputs have told it
        self._ever_told = False

    @property
    def token_ids(self) -> list[int]:
        """The tokens so far, to read."""
        return self._transcript.token_ids

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None

    def prime(self, prompt: Sequence[int]) -> None:
        """These tokens come before its first one."""
        self._detokenizer.prime(prompt)

    def apply(self, delta: TokenDelta) -> None:
        """Take in what the core sends. A stop string may end the answer before the last token of the delta, or before the core
        says that it ends.
        """
        assert delta.position == len(self.token_ids), f"token {delta.position} is lost or repeated"
        if delta.tokens:  # logprobs of a prompt may come at every life of a core that then dies of it
            self.deaths = self.deaths_alone = 0
        self.preemptions = delta.preemptions or self.preemptions
        if self._stops is None and self._logprobs is None and self._ends is None:
            self._take(delta.tokens, [], stopped=delta.finish_reason == "stop")
        else:  # one by one, for each may be the last
            for index, token in enumerate(delta.tokens):
                last = index == len(delta.tokens) - 1
                self._take([token], delta.logprobs[index : index + 1], stopped=last and delta.finish_reason == "stop")
                if self.finished:
                    return
        if delta.finish_reason is not None:
            self._finish(delta.finish_reason, delta.stop_reason)

    def _take(self, tokens: list[int], logprobs: list[TokenLogprobs], *, stopped: bool) -> None:
        self.token_ids.extend(tokens)
        if self._logprobs is not None:
            assert len(logprobs) == len(tokens), f"{len(logprobs)} logprobs for {len(tokens)} tokens"
            for token, one in zip(tokens, logprobs, strict=True):
                self._transcript.add_logprobs(self._logprobs.decode(token, one), one.logprob)
        # The token that stopped the answer is counted, and shown only if that is wanted.
        hidden = stopped and not self._params.include_stop_str_in_output
        self._show(self._detokenizer.push(tokens[:-1] if hidden else tokens))
        if self._ends is not None:
            self._ends.append(self._decoded)

    def _show(self, text: str) -> None:
        self._decoded += len(text)
        if self._stops is None:
            self._transcript.add_text(text)
            return
        shown, found = self._stops.push(text, counts=len(self.token_ids) > self._params.min_tokens)
        self._transcript.add_text(shown)
        if found is not None:
            self.finish_reason, self.stop_reason = "stop", found

    def _finish(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        self._show(self._detokenizer.flush())
        if self._ends:
            self._ends[-1] = self._decoded
        if not self.finished:  # the last bit of text may hold a stop string
            if self._stops is not None:
                self._transcript.add_text(self._stops.flush())
            self.finish_reason, self.stop_reason = reason, stop_reason

    @property
    def num_told(self) -> int:
        """Tokens that outputs have told."""
        return self._told[0]

    @property
    def num_characters(self) -> int:
        """Characters of its text so far, as outputs show it."""
        return self._transcript.num_characters

    def tokens_within(self, characters: int) -> int:
        """How many tokens have their text entirely within so many of the first characters. Ones without text count up to the
        last with some: bytes of a character that others complete may be among those behind.
        """
        assert self._ends is not None
        within = bisect_right(self._ends, characters)
        end = self._ends[within - 1] if within else 0
        return bisect_left(self._ends, end) + 1 if end else 0

    def cut(self, tokens: int) -> None:
        """It ends here, with so many of its tokens. What outputs have told stays told, and what they have not is gone."""
        assert self._ends is not None
        if self._stops is not None:
            self._transcript.add_text(self._stops.flush())
        self._told = self._transcript.cut(tokens, self._ends[tokens - 1] if tokens else 0, self._told)
        del self._ends[tokens:]
        self.finish_reason, self.stop_reason = "interrupt", None

    def is_due(self, interval: int) -> bool:
        """Whether there is to be an output now, when one comes every `interval` tokens."""
        news = len(self.token_ids) - self._told[0]
        return self.finished or news >= interval or (not self._ever_told and news > 0)

    @property
    def has_news(self) -> bool:
        """Whether no output has told all of it yet."""
        return self._told != self._transcript.mark or self.finished

    def tell(self, kind: RequestOutputKind) -> CompletionOutput:
        """The output of this moment: everything, or with kind "delta" what no output has told before."""
        transcript = self._transcript
        since = self._told if kind is RequestOutputKind.DELTA else (0, 0)
        view = kind is RequestOutputKind.CUMULATIVE and not self.finished
        output = CompletionOutput(
            self.index,
            transcript.text(since),
            transcript.tokens(since, view=view),
            transcript.cumulative_logprob,
            transcript.logprobs_of(since, view=view),
            self.finish_reason,
            self.stop_reason,
        )
        self._told = transcript.mark
        self._ever_told = True
        return output
