"""The server's numbers as Prometheus reads them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ringpost.actors.api.metrics import Metrics
from ringpost.actors.frontend.stats import FrontendStats
from ringpost.ipc.messages.config import EngineConfig
from ringpost.ipc.messages.load import LoadStats

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

ENGINE_LABELS = {"model_name": "tiny", "engine": "0"}
GAUGES = {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"}
GAUGES_OF_SERVER = {"http_realtime_connections", "start_seconds"}
COUNTERS = {
    *("prompt_tokens", "generation_tokens", "request_success", "http_requests"),
    *("num_preemptions", "prefix_cache_queries", "prefix_cache_hits"),
    *("process_restarts", "streams_resumed", "pause_seconds"),
}
HISTOGRAMS = {
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "http_request_duration_seconds",
}


class PaperEngine:
    """As much of an EngineClient as metrics are made of."""

    def __init__(self) -> None:
        self.stats = FrontendStats()
        self.config = EngineConfig()
        self.is_running = True
        self.counts = (5, 70, 30)

    def load(self) -> LoadStats | None:
        return LoadStats(0, 3, 2, 2, 8, *self.counts) if self.is_running else None


def metrics_of(engine: PaperEngine, model_name: str = "tiny") -> Metrics:
    return Metrics(engine, model_name)  # type: ignore[arg-type]


def rendered(metrics: Metrics) -> str:
    body, content_type = metrics.render()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    return body.decode()


def families(text: str) -> Iterator[prometheus_client.Metric]:
    """The families of a reply that are Ringpost's, by their names without the prefix."""
    for family in text_string_to_metric_families(text):
        prefix, colon, name = family.name.partition(":")
        if colon:
            assert prefix == "ringpost"
            family.name = name
            yield family


def samples_of(found: Iterable[prometheus_client.Metric]) -> Samples:
    samples = [sample for family in found for sample in family.samples]
    values = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(values) == len(samples), "a sample twice"
    return values


def value(text: str, name: str, **labels: str) -> float:
    labels = labels if name.startswith("http_") else ENGINE_LABELS | labels
    return samples_of(families(text))["ringpost:" + name, tuple(sorted(labels.items()))]


def test_names_types_and_labels() -> None:
    engine = PaperEngine()
    engine.stats.started("core0", {"ready": 2.5})
    engine.stats.died([("core0", "killed")], 0)
    metrics = metrics_of(engine)
    metrics.observe_request("GET", "/health", 200, 0.1)
    text = rendered(metrics)
    found = {family.name: family for family in families(text)}
    kinds = {
        kind: {family.name for family in found.values() if family.type == kind} for kind in ("gauge", "counter", "histogram")
    }
    assert kinds == {"gauge": GAUGES | GAUGES_OF_SERVER, "counter": COUNTERS, "histogram": HISTOGRAMS}
    assert all(family.documentation for family in found.values())
    for family in found.values():
        assert family.samples
        if not family.name.startswith("http_"):
            assert all(ENGINE_LABELS.items() <= sample.labels.items() for sample in family.samples)
    assert "process_resident_memory_bytes" in text
    assert "_created" not in text


def test_values() -> None:
    engine = PaperEngine()
    stats = engine.stats
    stats.first_scheduled(0.2)
    stats.first_tokens(5, 0.07, 1)
    stats.more_tokens(0.06, 3)
    stats.end("length", 4.0, 5, 4)
    stats.died([("core0", "killed"), ("worker0.0", "hung")], 3)
    stats.died([("core0", "killed")], 1)
    stats.pause_seconds += 1.5
    stats.started("worker0.0", {"import": 1.5, "load": 0.25})
    metrics = metrics_of(engine)
    for _ in range(2):
        metrics.observe_request("POST", "/v1/completions", 200, 0.4)
    metrics.observe_request("POST", "/v1/completions", 400, 0.002)
    text = rendered(metrics)
    assert value(text, "num_requests_running") == 3
    assert value(text, "num_requests_waiting") == 2
    assert value(text, "kv_cache_usage_perc") == 0.25
    assert value(text, "cache_config_info", block_size="16", num_blocks="8") == 1
    assert value(text, "num_preemptions_total") == 5
    assert value(text, "prefix_cache_queries_total") == 70
    assert value(text, "prefix_cache_hits_total") == 30
    assert value(text, "process_restarts_total", actor="core0", reason="killed") == 2
    assert value(text, "process_restarts_total", actor="worker0.0", reason="hung") == 1
    assert value(text, "streams_resumed_total") == 4
    assert value(text, "pause_seconds_total") == 1.5
    assert value(text, "start_seconds", actor="worker0.0", phase="load") == 0.25
    assert value(text, "prompt_tokens_total") == 5
    assert value(text, "generation_tokens_total") == 4
    assert [value(text, "request_success_total", finished_reason=reason) for reason in stats.finished] == [0, 1, 0, 0, 0, 0]
    assert value(text, "request_queue_time_seconds_sum") == 0.2
    assert value(text, "e2e_request_latency_seconds_count") == 1
    assert value(text, "request_prompt_tokens_bucket", le="2.0") == 0
    assert value(text, "request_prompt_tokens_bucket", le="5.0") == 1
    assert value(text, "request_generation_tokens_sum") == 4
    assert value(text, "time_to_first_token_seconds_bucket", le="0.06") == 0
    assert value(text, "time_to_first_token_seconds_bucket", le="0.08") == 1
    assert value(text, "inter_token_latency_seconds_count") == 3
    assert value(text, "inter_token_latency_seconds_bucket", le="+Inf") == 3
    route = {"method": "POST", "handler": "/v1/completions"}
    assert value(text, "http_requests_total", status="200", **route) == 2
    assert value(text, "http_requests_total", status="400", **route) == 1
    assert value(text, "http_request_duration_seconds_count", **route) == 3
    assert value(text, "http_request_duration_seconds_bucket", le="0.01", **route) == 1
    assert value(text, "http_request_duration_seconds_sum", **route) == pytest.approx(0.802)


def test_text_that_comes_from_outside_does_no_harm() -> None:
    name = 'a"b\\c\nd{e}=ü'
    metrics = metrics_of(PaperEngine(), name)
    for method in ("BREW", "brew", "GET"):
        metrics.observe_request(method, "unknown", 404, 0.0)
    text = rendered(metrics)
    assert {sample.labels.get("model_name", name) for family in families(text) for sample in family.samples} == {name}
    assert value(text, "http_requests_total", method="other", handler="unknown", status="404") == 2
    assert value(text, "http_requests_total", method="GET", handler="unknown", status="404") == 1


def test_while_the_engine_does_not_run_the_rest_is_served() -> None:
    engine = PaperEngine()
    metrics = metrics_of(engine)
    assert {family.name for family in families(rendered(metrics))} >= GAUGES
    engine.is_running = False
    text = rendered(metrics)
    assert {family.name for family in families(text)} == COUNTERS | HISTOGRAMS | GAUGES_OF_SERVER
    assert value(text, "prefix_cache_queries_total") == 70
    assert value(rendered(metrics_of(engine)), "prefix_cache_queries_total") == 0
    engine.is_running = True
    assert {family.name for family in families(rendered(metrics))} >= GAUGES


def test_servers_in_one_program_share_nothing() -> None:
    one, other = metrics_of(PaperEngine(), "one"), metrics_of(PaperEngine(), "other")
    one.observe_request("GET", "/health", 200, 0.1)
    assert 'model_name="one"' not in rendered(other)
    assert "/health" not in rendered(other)
    assert "ringpost" not in prometheus_client.generate_latest().decode()


EVENTS = st.one_of(
    st.tuples(st.just("scheduled"), st.floats(0, 9000)),
    st.tuples(st.just("first"), st.integers(1, 500), st.floats(0, 9000), st.integers(1, 3)),
    st.tuples(st.just("more"), st.floats(0, 100), st.integers(1, 3)),
    st.tuples(
        st.just("end"),
        st.sampled_from(["stop", "length", "abort", "error"]),
        st.floats(0, 9000),
        st.integers(1, 500),
        st.integers(0, 500),
    ),
    st.tuples(
        st.just("http"),
        st.sampled_from(["GET", "POST"]),
        st.sampled_from(["/a", "/b"]),
        st.sampled_from([200, 500]),
        st.floats(0, 9000),
    ),
)


@given(st.lists(EVENTS, max_size=20), st.lists(EVENTS, min_size=1, max_size=20))
def test_what_counts_only_grows(first: list[tuple[Any, ...]], second: list[tuple[Any, ...]]) -> None:
    engine = PaperEngine()
    metrics = metrics_of(engine)
    notes: dict[str, Callable[..., None]] = {
        "scheduled": engine.stats.first_scheduled,
        "first": engine.stats.first_tokens,
        "more": engine.stats.more_tokens,
        "end": engine.stats.end,
        "http": metrics.observe_request,
    }
    before: Samples = {}
    for events in (first, second):
        for kind, *details in events:
            notes[kind](*details)
        counted = [family for family in families(rendered(metrics)) if family.type != "gauge"]
        for family in counted:
            if family.type == "histogram":
                check_histogram(family)
        now = samples_of(counted)
        assert before.keys() <= now.keys()
        assert all(now[key] >= before[key] for key in before)
        assert now != before
        before = now


def check_histogram(family: prometheus_client.Metric) -> None:
    """Buckets are cumulative, in order, and end with the count."""
    series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            labels = dict(sample.labels)
            bound = float(labels.pop("le"))
            series.setdefault(tuple(sorted(labels.items())), []).append((bound, sample.value))
    counts = {tuple(sorted(s.labels.items())): s.value for s in family.samples if s.name.endswith("_count")}
    for key, buckets in series.items():
        assert buckets == sorted(buckets)
        assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert buckets[-1] == (float("inf"), counts[key])
    assert series.keys() == counts.keys()
