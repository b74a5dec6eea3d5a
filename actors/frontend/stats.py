"""FrontendStats: what this program's requests came to, counted since the engine was made."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from ...ipc.messages.outputs import FinishReason

# Upper bounds of buckets. vLLM's, with finer ones below them for small models.
FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTER_TOKEN_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_SECONDS = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))


class Histogram:
    """How many observations fell into each bucket, and their sum. Its size is fixed; all its numbers only grow."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the inclusive upper bounds of the buckets, rising; one bucket more takes what lies above the last."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` observations of one value, which must not be negative."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count


class FrontendStats:
    """Numbers of all accepted requests. Written within the frontend only; times are seconds, as seen in the frontend.

    A request is accepted once it has passed every check of the frontend and goes to the core. From then on each of its answers
    counts exactly once in `finished`, whatever ends it, unless the core refuses the request as invalid.
    """

    def __init__(self) -> None:
        self.prompt_tokens = 0  # of requests whose first token has come
        self.generation_tokens = 0
        # stop, length: the core's word; abort: its consumer left, or it was ended from outside; error: it or the engine failed.
        # interrupt: a session's turn, by its user.
        self.finished: dict[FinishReason, int] = dict.fromkeys(get_args(FinishReason), 0)
        # Where the time of the engine's start went, by actor and phase; the phase READY is the time from the engine's start.
        self.start_seconds: dict[tuple[str, str], float] = {}
        self.restarts: dict[tuple[str, str], int] = {}  # of the engine's processes, by actor and reason
        self.streams_resumed = 0  # live requests at those, which went on
        self.num_sessions = 0  # open now
        self.output_seconds = 0.0  # spent on turning tokens into text and waking their consumers
        self.pause_seconds = 0.0  # until the engine could work again
        self.time_to_first_token = Histogram(FIRST_TOKEN_SECONDS)  # from arrival
        self.inter_token_latency = Histogram(INTER_TOKEN_SECONDS)  # one a token but for a request's first
        self.request_queue_time = Histogram(REQUEST_SECONDS)  # from arrival until first scheduled
        # One observation for each answer in `finished`, but for the prompt's tokens, which are one for each request:
        self.e2e_request_latency = Histogram(REQUEST_SECONDS)  # from arrival to its end
        self.request_prompt_tokens = Histogram(TOKENS)
        self.request_generation_tokens = Histogram(TOKENS)

    def started(self, actor: str, phases: Mapping[str, float]) -> None:
        """An actor has started; so many seconds went into each phase."""
        for phase, seconds in phases.items():
            self.start_seconds[actor, phase] = seconds

    def died(self, processes: Iterable[tuple[str, str]], live: int) -> None:
        """Processes, by actor and reason, have died at once and are restarted; so many requests go on."""
        for process in processes:
            self.restarts[process] = self.restarts.get(process, 0) + 1
        self.streams_resumed += live

    def first_scheduled(self, queued: float) -> None:
        """A request has waited so long for its first step."""
        self.request_queue_time.observe(queued)

    def first_tokens(self, prompt_tokens: int, waited: float, count: int) -> None:
        """A request's first output came, `waited` after its arrival. Of several tokens, the later ones came at once."""
        self.prompt_tokens += prompt_tokens
        self.generation_tokens += count
        self.time_to_first_token.observe(waited)
        self.inter_token_latency.observe(0.0, count - 1)

    def more_tokens(self, gap: float, count: int) -> None:
        """Another output of a request came, `gap` after the one before it, with tokens that share the gap evenly."""
        self.generation_tokens += count
        self.inter_token_latency.observe(gap / count, count)

    def end(self, reason: FinishReason, latency: float, prompt_tokens: int | None, generation_tokens: int) -> None:
        """An answer to an accepted request has ended; with None, another one tells of the prompt."""
        self.finished[reason] += 1
        self.e2e_request_latency.observe(latency)
        if prompt_tokens is not None:
            self.request_prompt_tokens.observe(prompt_tokens)
        self.request_generation_tokens.observe(generation_tokens)
