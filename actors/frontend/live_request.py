"""LiveRequest: a request between its registration and its end, with all its answers."""

import time
from collections.abc import Iterable, Sequence
from copy import copy

from ...ipc.messages.outputs import TokenDelta, TokenLogprobs
from ...ipc.messages.requests import AddRequest
from ...ipc.messages.sampling import RequestOutputKind, SamplingParams
from .answer import Answer
from .detokenizer import Words
from .logprobs import FlatLogprobs, LogprobDecoder, Position
from .outputs import RequestMetrics, RequestOutput


class LiveRequest:
    """What is known of a request. Its collector takes outputs from here, so that nothing waits in a queue: an output holds all
    that has come since the one before.
    """

    def __init__(
        self,
        external_id: str,
        numbers: Sequence[int],
        params: SamplingParams,
        words: Words,
        content: str | list[int],
        *,
        interval: int = 1,
        cache_block: int = 0,
        cuttable: bool = False,
    ) -> None:
        """`numbers` are those of its answers in the engine, in order. An output is due every `interval` tokens.
        A `cuttable` one has one answer, which `interrupt` may end.

        The prefix cache keeps prompts in blocks of `cache_block` tokens; 0: it keeps none.
        """
        self.external_id = external_id
        self.answers = {
            number: Answer(number, index, params, words.detokenizer(), words.bytes_of, cuttable=cuttable)
            for index, number in enumerate(numbers)
        }
        self.open = dict(self.answers)  # those that have not ended
        self.prompt = content if isinstance(content, str) else None
        self.prompt_token_ids = [] if isinstance(content, str) else content
        self.metrics = RequestMetrics(arrival_unix_time=time.time(), arrival_time=time.monotonic())
        self.accepted = False  # its end counts in the statistics
        self.sent: AddRequest | None = None  # as it first went to the core
        self.cached_tokens: int | None = None  # prompt tokens found in the cache by the first answer
        self._cache_block = cache_block
        self._kind = params.output_kind
        self._interval = max(interval, params.stream_interval or 1)
        self._due: dict[int, Answer] = {}  # by index
        self._prompt_logprobs = FlatLogprobs() if params.flat_logprobs else list[Position]()
        self._prompt_logprobs.append({})  # nothing comes before the first token
        self._prompt_decoder = LogprobDecoder(words.bytes_of) if params.prompt_logprobs is not None else None
        self._prompt_told = False

    def apply(self, delta: TokenDelta) -> Answer:
        """Take in what the core sends for one of the open answers, and return that; see Answer.apply."""
        answer = self.open[delta.request]
        if self.cached_tokens is None and delta.tokens:
            self.cached_tokens = delta.cached_tokens
        if delta.prompt_logprobs and self._prompt_decoder is not None:
            self._take_prompt(self._prompt_decoder, delta.prompt_start, delta.prompt_logprobs)
        before = len(answer.token_ids)
        if not before:
            answer.prime(self.prompt_token_ids)
        answer.apply(delta)
        self.metrics.num_generation_tokens += len(answer.token_ids) - before
        if delta.preemptions:
            self.metrics.num_preemptions = sum(one.preemptions for one in self.answers.values())
        self.settle(answer)
        return answer

    def settle(self, answer: Answer) -> None:
        """An answer has changed: it may be due, and it may have ended."""
        if answer.finished:
            del self.open[answer.request]
        if answer.is_due(self._interval):
            self._due[answer.index] = answer

    def interrupt(self, tokens: int) -> None:
        """End its answer with so many of its tokens, also one that has ended and whose end no output has told."""
        (answer,) = self.answers.values()
        answer.cut(tokens)
        self.open.clear()
        self._due[answer.index] = answer

    def _take_prompt(self, decoder: LogprobDecoder, start: int, logprobs: Iterable[TokenLogprobs]) -> None:
        """Those of the prompt's tokens from `start` on. What has come before comes again after a preemption or a restart."""
        assert start <= len(self._prompt_logprobs), f"logprobs of the prompt before token {start} are lost"
        if len(self._prompt_logprobs) == 1:
            decoder.follow(self.prompt_token_ids[0])
        for place, one in enumerate(logprobs, start):
            if place == len(self._prompt_logprobs):
                self._prompt_logprobs.append(decoder.decode(self.prompt_token_ids[place], one))

    def tell_rest(self) -> None:
        """An error ends it: what has come before is to be told first."""
        self._due |= {answer.index: answer for answer in self.open.values() if answer.has_news}

    @property
    def has_output(self) -> bool:
        """Whether `take` has an output."""
        return bool(self._due) and not (self._kind is RequestOutputKind.FINAL_ONLY and self.open)

    def take(self) -> RequestOutput | None:
        """The output of this moment, or None when there is none."""
        if not self.has_output:
            return None
        due, self._due = self._due, {}
        cached, block = self.cached_tokens or 0, self._cache_block
        return RequestOutput(
            request_id=self.external_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[due[index].tell(self._kind) for index in sorted(due)],
            finished=not self.open,
            num_cached_tokens=cached,
            metrics=copy(self.metrics),  # as of now: later outputs do not change this one
            prompt_logprobs=self._tell_prompt(),
            num_cache_creation_tokens=max(len(self.prompt_token_ids) // block * block - cached, 0) if block else 0,
        )

    def _tell_prompt(self) -> Sequence[Position | None] | None:
        if self._prompt_decoder is None or (self._prompt_told and self._kind is RequestOutputKind.DELTA):
            return None
        self._prompt_told = True
        if isinstance(self._prompt_logprobs, FlatLogprobs):
            return self._prompt_logprobs
        return [None, *self._prompt_logprobs[1:]]
