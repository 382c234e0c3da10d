"""Prometheus metrics, all read from one engine snapshot at the moment of the scrape."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import metadata
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from mlxceld import __version__
from mlxceld.telemetry.buckets import BUCKETS
from mlxceld.telemetry.cache_metrics import collect_cache
from mlxceld.telemetry.histogram import HistogramSnapshot
from mlxceld.telemetry.logging import dropped_lines
from mlxceld.telemetry.process_metrics import PortableProcessCollector
from mlxceld.telemetry.refusals import ENDPOINTS, RefusalCounts
from mlxceld.telemetry.status import EngineState, EngineStatus

OUTCOMES = ("stop", "length", "cancelled", "timeout", "error", "rejected", "refused")
"""Values of the label ``outcome``."""

_HISTOGRAMS: Mapping[str, str] = {
    "time_to_first_token_seconds": "From submission to a request's first token.",
    "inter_token_latency_seconds": "Between two tokens of one request.",
    "request_queue_seconds": "From submission to the start of a request's prefill.",
    "request_prefill_seconds": "From the start of a request's prefill to its first token.",
    "request_decode_seconds": "From a request's first token to its last.",
    "request_seconds": "From submission to the end of a request.",
    "batch_size": "Requests in a decode step.",
    "engine_step_seconds": "Duration of a forward pass, prefill chunks and decode steps alike.",
}


class Metrics:
    """A registry of its own, so that several daemons fit in one process.

    ``snapshot`` returns the newest engine snapshot and may be called from any thread.
    ``reload_successful`` is whether the last reload of the settings went through; the daemon
    keeps it. ``refusals`` is filled by the public API.
    """

    def __init__(
        self, snapshot: Callable[[], EngineStatus], refusals: RefusalCounts | None = None
    ) -> None:
        self.reload_successful = True
        self.refusals = RefusalCounts() if refusals is None else refusals
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_EngineCollector(self, snapshot))
        if sys.platform == "linux":
            ProcessCollector(registry=self._registry)
        else:
            self._registry.register(PortableProcessCollector())

    def render(self, accept: str) -> tuple[bytes, str]:
        """The exposition in the format that an ``Accept`` header asks for, and its content type."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self._registry), content_type


class _EngineCollector(Collector):
    def __init__(self, metrics: Metrics, snapshot: Callable[[], EngineStatus]) -> None:
        self._metrics = metrics
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        # Everything below comes from this one reading, so that sums over series agree.
        snapshot = self._snapshot()
        yield from _collect_identity(snapshot)
        yield from _collect_requests(snapshot, self._metrics.refusals)
        yield from _collect_engine(snapshot)
        yield from collect_cache(
            snapshot.cache, snapshot_tokens_reused=snapshot.snapshot_tokens_reused
        )
        yield CounterMetricFamily(
            "mlxcel_log_lines_dropped",
            "Log lines dropped because nobody read the log.",
            value=dropped_lines(),
        )
        yield GaugeMetricFamily(
            "mlxcel_config_last_reload_successful",
            "1 if the last reload of the settings went through, 0 if the old ones were kept.",
            value=self._metrics.reload_successful,
        )


def _collect_identity(snapshot: EngineStatus) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "mlxcel_build", "Versions of the daemon and of what it runs on.", value=_versions()
    )
    model = InfoMetricFamily("mlxcel_model", "The loaded model; absent until one is loaded.")
    if snapshot.model is not None:
        model.add_metric(
            [],
            {
                "id": snapshot.model.id,
                "family": snapshot.model.family,
                "device": snapshot.model.device,
                "dtype": snapshot.model.dtype,
                "batching": snapshot.model.batching,
                "context_length": str(snapshot.model.context_length),
            },
        )
    yield model
    yield GaugeMetricFamily(
        "mlxcel_ready",
        "1 while the daemon answers requests.",
        value=snapshot.state is EngineState.READY and not snapshot.fault,
    )


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    """Read from the packages' metadata: importing MLX here would be on the wrong thread."""
    versions = {"version": __version__, "python": platform.python_version()}
    for label, package in (("mlx", "mlx"), ("mlx_lm", "mlx-lm")):
        try:
            versions[label] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[label] = "unknown"
    return versions


def _collect_requests(snapshot: EngineStatus, refusals: RefusalCounts) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "mlxcel_requests",
        "Requests that ended, by endpoint and outcome.",
        labels=("endpoint", "outcome"),
    )
    known = dict.fromkeys(
        ((endpoint, outcome) for endpoint in ENDPOINTS for outcome in OUTCOMES), 0
    )
    refused = {(e, "refused"): count for e, count in refusals.before_the_engine().items()}
    for labels, count in (known | dict(snapshot.outcomes) | refused).items():
        requests.add_metric(labels, count)
    yield requests
    by_code = CounterMetricFamily(
        "mlxcel_requests_refused",
        "Requests refused, by endpoint and error code; those of a full queue included.",
        labels=("endpoint", "code"),
    )
    for labels, count in refusals.counts().items():
        by_code.add_metric(labels, count)
    yield by_code
    yield GaugeMetricFamily(
        "mlxcel_requests_running", "Requests in prefill or decode.", value=snapshot.running
    )
    yield GaugeMetricFamily(
        "mlxcel_requests_waiting", "Requests in the queue.", value=snapshot.waiting
    )
    yield CounterMetricFamily(
        "mlxcel_queue_rejections",
        "Requests refused because the queue was full.",
        value=snapshot.queue_rejections,
    )
    yield CounterMetricFamily(
        "mlxcel_preemptions", "Requests put back for want of memory.", value=snapshot.preemptions
    )
    yield CounterMetricFamily(
        "mlxcel_trace_events_dropped",
        "Cache events that readers of the live trace were too slow for.",
        value=snapshot.trace_events_dropped,
    )
    for name, text in _HISTOGRAMS.items():
        yield _histogram(name, text, snapshot.histograms.get(name))


def _histogram(name: str, text: str, values: HistogramSnapshot | None) -> Metric:
    if values is None:
        # Nothing observed yet: the same buckets at zero, so that no series appears later.
        bounds = BUCKETS[name]
        values = HistogramSnapshot(bounds, (0,) * (len(bounds) + 1), 0.0)
    limits = [*(str(float(bound)) for bound in values.bounds), "+Inf"]
    return HistogramMetricFamily(
        f"mlxcel_{name}",
        text,
        buckets=list(zip(limits, accumulate(values.counts), strict=True)),
        sum_value=values.total,
    )


def _collect_engine(snapshot: EngineStatus) -> Iterator[Metric]:
    cache = snapshot.cache
    counters = (
        ("prompt_tokens", "Prompt tokens of requests whose prefill ended.", cache.prompt_tokens),
        (
            "prompt_tokens_computed",
            "Prompt tokens that were computed.",
            cache.prompt_tokens_computed,
        ),
        ("completion_tokens", "Tokens generated.", cache.completion_tokens),
        ("prefetch_tokens", "Tokens computed ahead of the next turn.", cache.prefetch_tokens),
        ("engine_steps", "Forward passes, prefill chunks and decode steps alike.", snapshot.steps),
        ("engine_faults", "Faults that failed what was running.", snapshot.faults),
    )
    for name, text, count in counters:
        yield CounterMetricFamily(f"mlxcel_{name}", text, value=count)
    gauges = (
        ("memory_active_bytes", "Memory in MLX arrays.", snapshot.memory.active),
        ("memory_peak_bytes", "Most memory in MLX arrays so far.", snapshot.memory.peak),
        ("memory_cache_bytes", "Memory that MLX keeps for reuse.", snapshot.memory.cache),
    )
    for name, text, value in gauges:
        yield GaugeMetricFamily(f"mlxcel_{name}", text, value=value)
