"""The numbers of ``GET /v1/cache/stats``, in the order and under the names that clients rely on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CacheStats:
    """One consistent reading of every cache counter; flat, and complete also when disabled.

    Sizes are bytes, times are seconds, counters are lifetime. The field order is the wire order.
    """

    enabled: bool = False
    apc_enabled: bool = False
    block_size: int = 0
    hash: str = "sha256"
    entries: int = 0
    bytes: int = 0
    capacity_bytes: int = 0
    max_entries: int = 0
    ttl_seconds: float = 0
    hits: int = 0
    misses: int = 0
    lookups: int = 0
    hit_rate: float = 0.0
    inserts: int = 0
    evictions_lru: int = 0
    evictions_ttl: int = 0
    evictions_flush: int = 0
    evictions_resize: int = 0
    consumed: int = 0
    replaced: int = 0
    rejections_oversized: int = 0
    insert_rejects: int = 0
    total_blocks_stored: int = 0
    unique_block_hashes: int = 0
    apc_active_entries: int = 0

    snapshot_enabled: bool = False
    snapshot_entries: int = 0
    snapshot_entries_head: int = 0
    snapshot_entries_boundary: int = 0
    snapshot_entries_completion: int = 0
    snapshot_bytes: int = 0
    snapshot_capacity_bytes: int = 0
    snapshot_max_entries: int = 0
    snapshot_ttl_seconds: float = 0
    snapshot_hits: int = 0
    snapshot_misses: int = 0
    snapshot_lookups: int = 0
    snapshot_hit_rate: float = 0.0
    snapshot_inserts: int = 0
    snapshot_supersedes: int = 0
    snapshot_replaced: int = 0
    snapshot_evictions_lru: int = 0
    snapshot_evictions_ttl: int = 0
    snapshot_evictions_flush: int = 0
    snapshot_evictions_resize: int = 0
    snapshot_rejections_oversized: int = 0

    paged_block_size: int = 0
    paged_blocks_allocated: int = 0
    paged_blocks_live: int = 0
    paged_blocks_free: int = 0
    paged_blocks_shared: int = 0
    paged_bytes_reserved: int = 0
    paged_bytes_in_use: int = 0
    paged_block_budget: int = 0
    batch_tail_bytes: int = 0

    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    prompt_tokens_reused: int = 0
    completion_tokens: int = 0
    background_tokens_computed: int = 0
    prefetch_run: int = 0
    prefetch_skipped: int = 0
    prefetch_tokens: int = 0
    cache_bytes_total: int = 0

    reject_oversized: int = 0
    reject_disabled: int = 0
    reject_prefix_too_short: int = 0
    reject_mode_mismatch: int = 0
    reject_empty_set: int = 0
    reject_layout_constraints: int = 0
    reject_block_boundary_floor: int = 0
    last_reject_reason: str | None = None
    last_reject_seq_id: int | None = None
    last_reject_context_len: int | None = None
    last_reject_at_unix_ms: int | None = None

    capacity_derivation: str = ""
    snapshot_capacity_derivation: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The JSON object of the route."""
        return asdict(self)
