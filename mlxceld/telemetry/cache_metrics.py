"""The prompt cache's Prometheus families, filled from its statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from mlxceld.telemetry.cache_stats import CacheStats

_REJECT = "reject_"

REJECT_REASONS = tuple(
    field.name.removeprefix(_REJECT)
    for field in fields(CacheStats)
    if field.name.startswith(_REJECT)
)
"""Values of the label ``reason`` of ``prompt_cache_reject_total``."""

_POOL = {
    "block_size": "Tokens a block.",
    "blocks_allocated": "Blocks that have memory.",
    "blocks_live": "Blocks that somebody owns.",
    "blocks_free": "Blocks that nobody owns.",
    "blocks_shared": "Blocks with two owners or more.",
    "bytes_reserved": "Memory of all allocated blocks.",
    "bytes_in_use": "Memory of the live blocks.",
    "block_budget": "Blocks that the budget allows.",
}


def collect_cache(stats: CacheStats, *, snapshot_tokens_reused: int) -> Iterator[Metric]:
    """Both stores, the reject counters and the block pool."""
    yield from _kv_store(stats)
    yield from _snapshot_store(stats, snapshot_tokens_reused)
    yield _labelled(
        "reject",
        "Donations declined and adoptions failed, by reason; one count for both stores.",
        {reason: getattr(stats, f"{_REJECT}{reason}") for reason in REJECT_REASONS},
    )
    for name, text in _POOL.items():
        yield GaugeMetricFamily(
            f"mlxcel_cache_pool_paged_{name}", text, value=getattr(stats, f"paged_{name}")
        )


def _kv_store(stats: CacheStats) -> Iterator[Metric]:
    yield _counter("hits", "Requests that adopted a stored prefix.", stats.hits)
    yield _counter("misses", "Requests that found no stored prefix.", stats.misses)
    yield _counter("inserts", "Entries stored.", stats.inserts)
    yield _counter(
        "prefix_tokens_reused",
        "Prompt tokens taken from the cache, of either store, instead of computed.",
        stats.prompt_tokens_reused,
    )
    removals = {
        "lru": stats.evictions_lru,
        "ttl": stats.evictions_ttl,
        "flush": stats.evictions_flush,
        "resize": stats.evictions_resize,
        "consumed": stats.consumed,
        "replaced": stats.replaced,
    }
    yield from _departures("", "Entries", removals)
    yield _gauge("entries", "Entries held.", stats.entries)
    yield _gauge("bytes", "Memory held; what entries share counts once.", stats.bytes)
    yield _gauge("capacity_bytes", "Memory that the store may hold.", stats.capacity_bytes)


def _snapshot_store(stats: CacheStats, tokens_reused: int) -> Iterator[Metric]:
    yield _counter("snapshot_hits", "Requests that resumed from a snapshot.", stats.snapshot_hits)
    yield _counter("snapshot_misses", "Requests without a snapshot.", stats.snapshot_misses)
    yield _counter(
        "snapshot_prefix_tokens_reused",
        "The part of the prompt tokens reused that came from snapshots.",
        tokens_reused,
    )
    yield _counter("snapshot_inserts", "Snapshots stored.", stats.snapshot_inserts)
    yield _counter(
        "snapshot_supersedes",
        "Snapshots that a longer one of their session made useless.",
        stats.snapshot_supersedes,
    )
    removals = {
        "lru": stats.snapshot_evictions_lru,
        "ttl": stats.snapshot_evictions_ttl,
        "flush": stats.snapshot_evictions_flush,
        "resize": stats.snapshot_evictions_resize,
        # A snapshot is read, never taken; the series is here so that both stores read alike.
        "consumed": 0,
        "replaced": stats.snapshot_replaced,
    }
    yield from _departures("snapshot_", "Snapshots", removals)
    yield _gauge("snapshot_entries", "Snapshots held.", stats.snapshot_entries)
    yield _gauge("snapshot_bytes", "Memory held by snapshots.", stats.snapshot_bytes)
    yield _gauge(
        "snapshot_capacity_bytes",
        "Memory that snapshots may hold.",
        stats.snapshot_capacity_bytes,
    )


def _departures(family: str, what: str, removals: Mapping[str, int]) -> Iterator[Metric]:
    yield _labelled(f"{family}removals", f"{what} that left the store, by reason.", removals)
    yield _labelled(
        f"{family}evictions",
        f"{what} evicted for want of room (lru) or use (ttl).",
        {reason: removals[reason] for reason in ("lru", "ttl")},
    )


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(f"mlxcel_prompt_cache_{name}", text, value=value)


def _gauge(name: str, text: str, value: int) -> Metric:
    return GaugeMetricFamily(f"mlxcel_prompt_cache_{name}", text, value=value)


def _labelled(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"mlxcel_prompt_cache_{name}", text, labels=("reason",))
    for reason, count in counts.items():
        family.add_metric((reason,), count)
    return family
