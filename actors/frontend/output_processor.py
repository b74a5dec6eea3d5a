"""OutputProcessor: what the core sends reaches the requests it is for, and their consumers."""

import time
from collections.abc import Collection, Iterable, Iterator
from typing import Protocol

import msgspec

from ...ipc.messages.config import SchedulerConfig
from ...ipc.messages.outputs import FinishReason, TokenDelta
from ...ipc.messages.requests import AddRequest
from ..errors import EngineGenerateError, copy_of
from ..logs import logger
from .answer import Answer
from .live_request import LiveRequest
from .stats import FrontendStats


class Listener(Protocol):
    """Who learns what comes of a request: its collector, or its session."""

    def wake(self) -> None:
        """Something has come, or all its answers have ended."""

    def put_error(self, error: Exception) -> None:
        """It has ended by an error."""


class OutputProcessor:
    """The table of live requests, and the only loop over a step's outputs. Each answer to a request has a number of its own."""

    def __init__(self) -> None:
        self.stats = FrontendStats()
        self._requests: dict[int, tuple[LiveRequest, Listener]] = {}  # by the number of each open answer

    def __len__(self) -> int:
        """Number of live requests, each answer counted."""
        return len(self._requests)

    def add(self, live: LiveRequest, listener: Listener) -> None:
        """Register a request, before it is sent."""
        self._requests |= dict.fromkeys(live.open, (live, listener))

    def tokenized(self, live: LiveRequest, token_ids: list[int]) -> bool:
        """Set the prompt's token ids: the request is accepted. False when it has ended meanwhile and must not be sent."""
        if not self._numbers(live):
            return False
        live.prompt_token_ids = token_ids
        live.accepted = True
        return True

    def sending(self, live: LiveRequest, message: AddRequest) -> bool:
        """A request goes to the core, and from now on to each successor of it. False when it has ended and must not be sent."""
        if not self._numbers(live):
            return False
        live.sent = message
        return True

    def num_sent(self) -> int:
        """Live requests that the core has, each answer counted."""
        return sum(live.sent is not None for live, _ in self._requests.values())

    def core_died(self, scheduler: SchedulerConfig, alone: int | None) -> bool:
        """Count a death of the core for the requests that may have been in flight there: as many as run at once, in order of
        rank. `alone` is the one that was in flight alone. True: for the second time.
        """
        had = [(live.sent.priority, number) for number, (live, _) in self._requests.items() if live.sent is not None]
        if scheduler.scheduling_policy == "priority":
            had.sort(key=lambda one: one[0])
        for _, number in had[: scheduler.max_num_seqs]:
            self._answer(number).deaths += 1
        if alone not in self._requests:
            return False
        answer = self._answer(alone)
        answer.deaths_alone += 1
        return answer.deaths_alone > 1

    def _answer(self, number: int) -> Answer:
        return self._requests[number][0].open[number]

    def _numbers(self, live: LiveRequest) -> list[int]:
        """Those of a request's answers that have not ended, by themselves or with the request."""
        return [number for number in live.open if number in self._requests]

    def unfinished(self) -> Iterator[AddRequest]:
        """The requests that a restarted core has to be sent, as it needs them: each answer on its own, with what has come of
        it so far. It may take long to go through: those that end meanwhile are left out.
        """
        for number, (live, _) in list(self._requests.items()):
            if live.sent is not None and number in self._requests:
                yield _resumed(live.sent, live.open[number])

    def abandon(self, live: LiveRequest, reason: FinishReason | None = "abort") -> list[int]:
        """Forget a request without a word to its listener; without a reason it counts nowhere.

        Returns the numbers that the core must be told to drop.
        """
        numbers = self._numbers(live)
        for number in numbers:
            self._remove(live, live.open[number], reason)
        return numbers

    def _remove(self, live: LiveRequest, answer: Answer, reason: FinishReason | None) -> None:
        """Take an answer out of the table, the only way out, and count its end; without a reason it counts nowhere."""
        del self._requests[answer.request]
        if live.accepted and reason is not None:
            latency = time.monotonic() - live.metrics.arrival_time
            prompt_tokens = len(live.prompt_token_ids) if answer.index == 0 else None
            self.stats.end(reason, latency, prompt_tokens, len(answer.token_ids))

    def requests_of(self, external_ids: Collection[str]) -> list[LiveRequest]:
        """The live requests that these ids of the caller stand for."""
        return [live for live in self.live() if live.external_id in external_ids]

    def external_id(self, number: int) -> str:
        """The caller's id of a request; a made-up one where it is not live any more."""
        entry = self._requests.get(number)
        return f"number {number}" if entry is None else entry[0].external_id

    def live(self) -> list[LiveRequest]:
        """The live requests."""
        return list(dict.fromkeys(live for live, _ in self._requests.values()))

    def process(self, deltas: Iterable[TokenDelta]) -> list[int]:
        """Deliver a step's tokens; returns the numbers that have ended here and not in the core, which must be told.

        Tokens of requests no longer live are ignored: those were aborted here.
        """
        now = time.monotonic()
        ended: list[int] = []
        for delta in deltas:
            if delta.request in self._requests:
                ended += self._deliver(delta, now)
        return ended

    def _deliver(self, delta: TokenDelta, now: float) -> list[int]:
        """Deliver to one live request; a fault ends that request alone. Returns the numbers that the core must be told."""
        live, listener = self._requests[delta.request]
        before = live.metrics.num_generation_tokens
        try:
            answer = live.apply(delta)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, a tokenizer's panic too, is this request's alone
            logger.exception("request %s failed in the frontend", live.external_id)
            failure = EngineGenerateError(f"frontend0: {live.external_id}: {type(error).__name__}: {error}")
            return self._fail(live, listener, failure, "error")
        self._measure(live, answer, delta, live.metrics.num_generation_tokens - before, now)
        if answer.finish_reason is not None:
            self._remove(live, answer, answer.finish_reason)
        listener.wake()
        return [delta.request] if answer.finish_reason is not None and delta.finish_reason is None else []

    def _measure(self, live: LiveRequest, answer: Answer, delta: TokenDelta, count: int, now: float) -> None:
        """Note when `count` tokens came, for their request and in the statistics."""
        metrics = live.metrics
        if delta.scheduled and not metrics.first_scheduled_time:
            metrics.queued_time, metrics.first_scheduled_time = delta.queued, delta.scheduled
            self.stats.first_scheduled(delta.scheduled - metrics.arrival_time)
        if not count:
            return
        if not metrics.first_token_time:
            metrics.first_token_time = now
            self.stats.first_tokens(len(live.prompt_token_ids), now - metrics.arrival_time, count)
        else:  # the first of another answer follows that of the request
            self.stats.more_tokens(now - (answer.last_token_time or metrics.first_token_time), count)
        metrics.last_token_time = answer.last_token_time = now

    def abort(self, live: LiveRequest) -> list[int]:
        """End a live request with finish reason "abort" and what it has so far. Returns the numbers that the core must drop."""
        numbers = self._numbers(live)
        for number in numbers:
            self._deliver(TokenDelta(number, len(live.open[number].token_ids), [], "abort"), time.monotonic())
        return numbers

    def fail(self, number: int, error: Exception) -> list[int]:
        """End the request of this number by an error. A ValueError before any token is a refusal, which counts nowhere.

        Returns the numbers of its other answers, which the core must be told to drop.
        """
        if number not in self._requests:
            return []
        live, listener = self._requests[number]
        refused = isinstance(error, ValueError) and not live.metrics.num_generation_tokens
        reason: FinishReason | None = None if refused else "error"
        return [other for other in self._fail(live, listener, error, reason) if other != number]

    def _fail(self, live: LiveRequest, listener: Listener, error: Exception, reason: FinishReason | None) -> list[int]:
        live.tell_rest()
        numbers = self.abandon(live, reason)
        listener.put_error(error)
        return numbers

    def fail_all(self, error: Exception) -> None:
        """End every live request by an error."""
        for live in self.live():
            self.fail(next(iter(live.open)), copy_of(error))


def _resumed(sent: AddRequest, answer: Answer) -> AddRequest:
    """The message for an answer that goes on."""
    params = sent.params
    if answer.index:
        seeds = {sibling.request: sibling.seed for sibling in sent.siblings}
        params = params.derive(seed=seeds[answer.request], prompt_logprobs=None)
    return msgspec.structs.replace(
        sent,
        request=answer.request,
        params=params,
        output=list(answer.token_ids),
        deaths=answer.deaths,
        deaths_alone=answer.deaths_alone,
        siblings=(),
    )
