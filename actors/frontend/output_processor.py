"""OutputProcessor: what the core sends becomes RequestOutputs in the collectors of their requests."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import msgspec

from ...ipc.messages.config import SchedulerConfig
from ...ipc.messages.outputs import FinishReason, TokenDelta
from ...ipc.messages.requests import AddRequest
from ...ipc.messages.sampling import SamplingParams
from ..errors import EngineGenerateError, copy_of
from ..logs import logger
from .collector import RequestOutputCollector
from .detokenizer import Detokenizer
from .outputs import CompletionOutput, RequestMetrics, RequestOutput
from .stats import FrontendStats


@dataclass(slots=True)
class _RequestState:
    """A request between its registration and its end."""

    external_id: str
    params: SamplingParams
    collector: RequestOutputCollector
    detokenizer: Detokenizer
    prompt: str | None
    prompt_token_ids: list[int]
    metrics: RequestMetrics
    accepted: bool = False  # its end counts in the statistics
    sent: AddRequest | None = None  # as it first went to the core
    deaths: int = 0  # of cores that had it, without a token of it since
    deaths_alone: int = 0  # those at which it was in flight alone
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    cached_tokens: int = 0


class OutputProcessor:
    """The table of live requests, and the only loop over a step's outputs."""

    def __init__(self) -> None:
        self.stats = FrontendStats()
        self._states: dict[int, _RequestState] = {}

    def __len__(self) -> int:
        """Number of live requests."""
        return len(self._states)

    def add(
        self,
        request: int,
        params: SamplingParams,
        collector: RequestOutputCollector,
        detokenizer: Detokenizer,
        content: str | list[int],
    ) -> None:
        """Register a request, before it is sent."""
        prompt, ids = (content, []) if isinstance(content, str) else (None, content)
        metrics = RequestMetrics(arrival_time=time.monotonic())
        self._states[request] = _RequestState(collector.request_id, params, collector, detokenizer, prompt, ids, metrics)

    def tokenized(self, request: int, token_ids: list[int]) -> bool:
        """Set the prompt's token ids: the request is accepted. False when it has ended meanwhile and must not be sent."""
        state = self._states.get(request)
        if state is None:
            return False
        state.prompt_token_ids = token_ids
        state.accepted = True
        return True

    def sending(self, message: AddRequest) -> bool:
        """A request goes to the core, and from now on to each successor of it. False when it has ended and must not be sent."""
        state = self._states.get(message.request)
        if state is None:
            return False
        state.sent = message
        return True

    def num_sent(self) -> int:
        """Live requests that the core has."""
        return sum(state.sent is not None for state in self._states.values())

    def core_died(self, scheduler: SchedulerConfig, alone: int | None) -> bool:
        """Count a death of the core for the requests that may have been in flight there: as many as run at once, in order of
        rank. `alone` is the one that was in flight alone. True: for the second time.
        """
        had = [state for state in self._states.values() if state.sent is not None]
        if scheduler.scheduling_policy == "priority":
            had.sort(key=_priority)
        for state in had[: scheduler.max_num_seqs]:
            state.deaths += 1
        if alone not in self._states:
            return False
        self._states[alone].deaths_alone += 1
        return self._states[alone].deaths_alone > 1

    def unfinished(self) -> Iterator[AddRequest]:
        """The requests that a restarted core has to be sent, as it needs them: with what has come so far. It may take long to
        go through: those that end meanwhile are left out.
        """
        for request, state in list(self._states.items()):
            if state.sent is not None and request in self._states:
                yield msgspec.structs.replace(
                    state.sent, output=list(state.token_ids), deaths=state.deaths, deaths_alone=state.deaths_alone
                )

    def discard(self, request: int, reason: FinishReason = "abort") -> bool:
        """Forget a request without a word to its collector; False when it is not live."""
        return self._remove(request, reason) is not None

    def _remove(self, request: int, reason: FinishReason | None) -> _RequestState | None:
        """Take a request out of the table, the only way out, and count its end; without a reason it counts nowhere."""
        state = self._states.pop(request, None)
        if state is not None and state.accepted and reason is not None:
            latency = time.monotonic() - state.metrics.arrival_time
            self.stats.end(reason, latency, len(state.prompt_token_ids), len(state.token_ids))
        return state

    def requests_of(self, external_id: str) -> list[int]:
        """The live requests that a caller's id stands for."""
        return [request for request, state in self._states.items() if state.external_id == external_id]

    def external_id(self, request: int) -> str:
        """The caller's id of a request; a made-up one where it is not live any more."""
        state = self._states.get(request)
        return f"number {request}" if state is None else state.external_id

    def live(self) -> list[int]:
        """The live requests."""
        return list(self._states)

    def process(self, deltas: Iterable[TokenDelta]) -> list[int]:
        """Deliver a step's tokens; returns the requests that failed here, which the core must be told to drop.

        Tokens of requests no longer live are ignored: those were aborted here.
        """
        now = time.monotonic()
        return [delta.request for delta in deltas if delta.request in self._states and not self._deliver(delta, now)]

    def _deliver(self, delta: TokenDelta, now: float) -> bool:
        """Deliver to one live request; a fault ends that request alone, and the answer is False."""
        try:
            self._apply(self._states[delta.request], delta, now)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, a tokenizer's panic too, is this request's alone
            logger.exception("request %s failed in the frontend", self._states[delta.request].external_id)
            self.fail(delta.request, EngineGenerateError(f"frontend0: {type(error).__name__}: {error}"))
            return False
        if delta.finish_reason is not None:
            self._remove(delta.request, delta.finish_reason)
        return True

    def _apply(self, state: _RequestState, delta: TokenDelta, now: float) -> None:
        assert delta.position == len(state.token_ids), f"{state.external_id}: token {delta.position} is lost or repeated"
        state.cached_tokens = max(state.cached_tokens, delta.cached_tokens)
        state.token_ids += delta.tokens
        state.deaths = state.deaths_alone = 0
        self._measure(state, delta, now)
        # The token that stopped the request is counted but not shown.
        shown = delta.tokens[:-1] if delta.finish_reason == "stop" else delta.tokens
        text = state.detokenizer.push(shown)
        if delta.finish_reason is not None:
            text += state.detokenizer.flush()
        state.text += text
        if delta.finish_reason is not None or state.params.output_kind != "final_only":
            state.collector.put(_output(state, delta, text))

    def _measure(self, state: _RequestState, delta: TokenDelta, now: float) -> None:
        """Note when a delta came, for its request and in the statistics."""
        metrics, count = state.metrics, len(delta.tokens)
        metrics.num_generation_tokens = len(state.token_ids)
        if delta.scheduled and not metrics.first_scheduled_time:
            metrics.first_scheduled_time = delta.scheduled
            self.stats.first_scheduled(delta.scheduled - metrics.arrival_time)
        if not count:
            return
        if metrics.first_token_time:
            self.stats.more_tokens(now - metrics.last_token_time, count)
        else:
            metrics.first_token_time = now
            self.stats.first_tokens(len(state.prompt_token_ids), now - metrics.arrival_time, count)
        metrics.last_token_time = now

    def abort(self, request: int) -> None:
        """End a live request with finish reason "abort" and what it has so far."""
        position = len(self._states[request].token_ids)
        self._deliver(TokenDelta(request, position, [], "abort"), time.monotonic())

    def fail(self, request: int, error: Exception) -> None:
        """End a request by an error. A ValueError is a refusal, so it does not count among the finished."""
        state = self._remove(request, None if isinstance(error, ValueError) else "error")
        if state is not None:
            state.collector.put_error(error)

    def fail_all(self, error: Exception) -> None:
        """End every live request by an error."""
        for request in self.live():
            self.fail(request, copy_of(error))


def _priority(state: _RequestState) -> int:
    assert state.sent is not None
    return state.sent.priority


def _output(state: _RequestState, delta: TokenDelta, text: str) -> RequestOutput:
    is_delta = state.params.output_kind == "delta"
    completion = CompletionOutput(
        index=0,
        text=text if is_delta else state.text,
        token_ids=list(delta.tokens) if is_delta else list(state.token_ids),
        finish_reason=delta.finish_reason,
        stop_reason=delta.stop_reason,
    )
    return RequestOutput(
        request_id=state.external_id,
        prompt=state.prompt,
        prompt_token_ids=state.prompt_token_ids,
        outputs=[completion],
        finished=delta.finish_reason is not None,
        num_cached_tokens=state.cached_tokens,
        metrics=replace(state.metrics),  # as of now: later outputs do not change this one
    )
