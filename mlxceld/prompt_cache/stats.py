"""What the stores contribute to the published cache statistics."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from mlxceld.prompt_cache.block_store import BlockStore
from mlxceld.prompt_cache.entry_store import EntryStore
from mlxceld.prompt_cache.prompt_cache import PromptCache
from mlxceld.prompt_cache.snapshot_entry import Origin
from mlxceld.prompt_cache.snapshot_store import SnapshotStore
from mlxceld.telemetry.cache_stats import CacheStats


def fill(stats: CacheStats, cache: PromptCache) -> CacheStats:
    """``stats`` with the numbers of a cache, its stores and its refusals filled in.

    Everything else (the work counters, the pool) is left as the caller set it.
    """
    budget, rejects = cache.budget, cache.rejects
    last = rejects.last
    refusals: dict[str, Any] = {f"reject_{why}": count for why, count in rejects.counts.items()}
    stats = replace(
        stats,
        enabled=cache.enabled,
        capacity_bytes=budget.capacity_bytes,
        max_entries=budget.max_entries,
        ttl_seconds=budget.ttl_seconds,
        snapshot_capacity_bytes=budget.snapshot_capacity_bytes,
        snapshot_max_entries=budget.snapshot_max_entries,
        snapshot_ttl_seconds=budget.snapshot_ttl_seconds,
        insert_rejects=rejects.insert_rejects,
        cache_bytes_total=cache.bytes,
        last_reject_reason=last.reason.value if last else None,
        last_reject_seq_id=last.seq_id if last else None,
        last_reject_context_len=last.context_len if last else None,
        last_reject_at_unix_ms=last.at_unix_ms if last else None,
        **refusals,
    )
    for store in cache.stores:
        if isinstance(store, SnapshotStore):
            stats = _with_snapshots(stats, store)
        else:
            stats = _with_prefixes(stats, store)
        if isinstance(store, BlockStore):
            stats = replace(
                stats,
                apc_enabled=cache.enabled and not store.whole_entries,
                **asdict(store.chain_stats()),
            )
    return stats


def _with_prefixes(stats: CacheStats, store: EntryStore[Any]) -> CacheStats:
    counters = store.counters
    return replace(
        stats,
        entries=len(store),
        bytes=store.bytes,
        hits=counters.hits,
        misses=counters.misses,
        lookups=counters.lookups,
        hit_rate=counters.hits / counters.lookups if counters.lookups else 0.0,
        inserts=counters.inserts,
        evictions_lru=counters.evictions_lru,
        evictions_ttl=counters.evictions_ttl,
        evictions_flush=counters.evictions_flush,
        evictions_resize=counters.evictions_resize,
        consumed=counters.consumed,
        replaced=counters.replaced,
        rejections_oversized=counters.rejections_oversized,
    )


def _with_snapshots(stats: CacheStats, store: SnapshotStore[Any]) -> CacheStats:
    counters = store.counters
    return replace(
        stats,
        snapshot_enabled=store.enabled,
        snapshot_entries=len(store),
        snapshot_entries_head=store.count(Origin.HEAD),
        snapshot_entries_boundary=store.count(Origin.BOUNDARY),
        snapshot_entries_completion=store.count(Origin.COMPLETION),
        snapshot_bytes=store.bytes,
        snapshot_hits=counters.hits,
        snapshot_misses=counters.misses,
        snapshot_lookups=counters.lookups,
        snapshot_hit_rate=counters.hits / counters.lookups if counters.lookups else 0.0,
        snapshot_inserts=counters.inserts,
        snapshot_supersedes=counters.supersedes,
        snapshot_replaced=counters.replaced,
        snapshot_evictions_lru=counters.evictions_lru,
        snapshot_evictions_ttl=counters.evictions_ttl,
        snapshot_evictions_flush=counters.evictions_flush,
        snapshot_evictions_resize=counters.evictions_resize,
        snapshot_rejections_oversized=counters.rejections_oversized,
    )
