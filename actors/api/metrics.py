"""The server's numbers in Prometheus' text format. Names and meanings are vLLM's, with the prefix `ringpost:`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPMethod
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from ...ipc.messages.load import LoadStats
from ..frontend.engine_client import EngineClient
from ..frontend.stats import REQUEST_SECONDS, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # which every scraper reads
_LABELS = ("model_name", "engine")


class Metrics:
    """What is known about one server and its engine. Used from the engine's event loop."""

    def __init__(self, engine: EngineClient, model_name: str) -> None:
        self._engine = engine
        self._labels = (model_name, "0")
        self._requests: dict[tuple[str, str, str], int] = {}
        self._durations: dict[tuple[str, str], Histogram] = {}
        self._realtime = 0  # connections open
        self._core = LoadStats(0, 0, 0, 0, 0)  # as last seen
        self._registry = CollectorRegistry()  # a program may hold several servers, and metrics of its own
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def observe_request(self, method: str, handler: str, status: int, seconds: float) -> None:
        """Count a HTTP request that has been answered. `handler` is the route's template, of which there are few."""
        method = method if method in HTTPMethod.__members__ else "other"  # a client may send any word
        key = method, handler, str(status)
        self._requests[key] = self._requests.get(key, 0) + 1
        self._durations.setdefault((method, handler), Histogram(REQUEST_SECONDS)).observe(seconds)

    @contextmanager
    def realtime_connection(self) -> Iterator[None]:
        """The time in which one more connection of /v1/realtime is open."""
        self._realtime += 1
        try:
            yield
        finally:
            self._realtime -= 1

    def render(self) -> tuple[bytes, str]:
        """Body and content type of a reply. The core's gauges are absent while the engine does not run; its counters stay."""
        return generate_latest(self._registry), CONTENT_TYPE

    def collect(self) -> Iterable[Metric]:
        """Everything but the process's own numbers, as of now; called by the registry."""
        core = self._engine.load()
        if core is not None:
            self._core = core
            yield from self._gauges(core)
        yield from self._counters()
        yield from self._start()
        yield from self._histograms()
        yield from self._http()

    def _gauges(self, core: LoadStats) -> Iterator[Metric]:
        for name, value, text in (
            ("num_requests_running", core.running, "Requests that take part in the engine's steps."),
            ("num_requests_waiting", core.waiting, "Requests that wait for a row, for blocks, or for their reader."),
            ("kv_cache_usage_perc", core.used_blocks / core.num_blocks, "Share of the KV cache's blocks in use, 0 to 1."),
        ):
            gauge = GaugeMetricFamily(f"ringpost:{name}", text, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        labels = (*_LABELS, "block_size", "num_blocks")
        info = GaugeMetricFamily("ringpost:cache_config_info", "The KV cache: tokens in a block, and blocks.", labels=labels)
        info.add_metric((*self._labels, str(self._engine.config.cache.block_size), str(core.num_blocks)), 1)
        yield info

    def _counters(self) -> Iterator[Metric]:
        stats = self._engine.stats
        for name, value, text in (
            ("prompt_tokens", stats.prompt_tokens, "Prompt tokens of requests whose first token has come."),
            ("generation_tokens", stats.generation_tokens, "Tokens generated."),
            ("num_preemptions", self._core.preemptions, "Times that a request gave its place to another one."),
            ("prefix_cache_queries", self._core.prefix_queries, "Prompt tokens looked up in the prefix cache."),
            ("prefix_cache_hits", self._core.prefix_hits, "Those of them that were found."),
            ("streams_resumed", stats.streams_resumed, "Times that a live request went on after a process had died."),
            ("pause_seconds", stats.pause_seconds, "Seconds in which processes that had died were replaced."),
        ):
            counter = CounterMetricFamily(f"ringpost:{name}", text, labels=_LABELS)
            counter.add_metric(self._labels, value)
            yield counter
        text = "Requests that have ended, by the reason."
        ended = CounterMetricFamily("ringpost:request_success", text, labels=(*_LABELS, "finished_reason"))
        for reason, count in stats.finished.items():
            ended.add_metric((*self._labels, reason), count)
        yield ended
        text = "Processes of the engine that were replaced, by actor and reason."
        restarts = CounterMetricFamily("ringpost:process_restarts", text, labels=(*_LABELS, "actor", "reason"))
        for cause, count in stats.restarts.items():
            restarts.add_metric((*self._labels, *cause), count)
        yield restarts

    def _start(self) -> Iterator[Metric]:
        text = "Seconds of the engine's start, by actor and phase; the phase `ready` is all of it."
        gauge = GaugeMetricFamily("ringpost:start_seconds", text, labels=(*_LABELS, "actor", "phase"))
        for which, seconds in self._engine.stats.start_seconds.items():
            gauge.add_metric((*self._labels, *which), seconds)
        yield gauge

    def _histograms(self) -> Iterator[Metric]:
        stats = self._engine.stats
        for name, histogram, text in (
            ("time_to_first_token_seconds", stats.time_to_first_token, "From a request's arrival to its first token."),
            ("inter_token_latency_seconds", stats.inter_token_latency, "Between a token and the one before it."),
            ("e2e_request_latency_seconds", stats.e2e_request_latency, "From a request's arrival to its end."),
            ("request_queue_time_seconds", stats.request_queue_time, "From a request's arrival to its first step."),
            ("request_prompt_tokens", stats.request_prompt_tokens, "Prompt tokens of a request that has ended."),
            ("request_generation_tokens", stats.request_generation_tokens, "Tokens generated for a request that has ended."),
        ):
            family = HistogramMetricFamily(f"ringpost:{name}", text, labels=_LABELS)
            family.add_metric(self._labels, _buckets(histogram), histogram.sum)
            yield family

    def _http(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("ringpost:http_realtime_connections", "WebSockets open at /v1/realtime.", value=self._realtime)
        text = "HTTP requests answered."
        requests = CounterMetricFamily("ringpost:http_requests", text, labels=("method", "handler", "status"))
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield requests
        text = "From a HTTP request's arrival to the end of its answer."
        durations = HistogramMetricFamily("ringpost:http_request_duration_seconds", text, labels=("method", "handler"))
        for route, histogram in self._durations.items():
            durations.add_metric(route, _buckets(histogram), histogram.sum)
        yield durations


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Upper bounds as text, each with the number of observations up to it."""
    return list(zip([*map(str, histogram.bounds), "+Inf"], accumulate(histogram.counts), strict=True))
