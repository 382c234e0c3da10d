"""The cache's numbers for people: what is kept, how often it helped, what was refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mlxctl import tables

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

_REJECTS = "reject_"


def stats_table(stats: dict[str, Any], rates: str = "") -> Group:
    """The answer of ``cache/stats`` in its parts; ``rates`` draws the last hit rates."""
    from rich.console import Group
    from rich.padding import Padding

    parts: list[RenderableType] = []
    for title, rows in (
        ("KV store", _store(stats)),
        ("Snapshots", _snapshots(stats)),
        ("Pool", _pool(stats)),
        ("Work", _work(stats)),
        ("Rejects", _rejects(stats)),
    ):
        if title == "Work" and rates.strip():
            rows = iter([("hit rate now", rates), *rows])
        parts += [tables.section(title), Padding(tables.key_values(rows), (0, 0, 0, 2))]
    return Group(*parts)


def _store(stats: dict[str, Any]) -> Iterator[tuple[str, str]]:
    count = tables.count_text
    if not stats["enabled"]:
        yield "state", "disabled"
    yield "bytes", _budget(stats["bytes"], stats["capacity_bytes"])
    if stats["capacity_derivation"]:
        yield "capacity", stats["capacity_derivation"]
    yield "entries", f"{count(stats['entries'])} of {count(stats['max_entries'])}"
    yield "idle limit", tables.ttl_text(stats["ttl_seconds"])
    yield "hits", _hits(stats, "")
    yield "inserts", count(stats["inserts"])
    evictions = _evictions(stats, "")
    yield (
        "left",
        f"{evictions}, {count(stats['consumed'])} taken, {count(stats['replaced'])} replaced",
    )
    if stats["apc_enabled"]:
        unique, stored = count(stats["unique_block_hashes"]), count(stats["total_blocks_stored"])
        yield "blocks", f"{stored} stored, {unique} different, of {stats['block_size']} tokens"


def _snapshots(stats: dict[str, Any]) -> Iterator[tuple[str, str]]:
    count = tables.count_text
    if not stats["snapshot_enabled"]:
        yield "state", "disabled"
        return
    by_kind = {k: stats[f"snapshot_entries_{k}"] for k in ("head", "boundary", "completion")}
    by_kind["prefetched"] = stats["snapshot_entries"] - sum(by_kind.values())
    kinds = ", ".join(f"{count(number)} {kind}" for kind, number in by_kind.items())
    entries = f"{count(stats['snapshot_entries'])} of {count(stats['snapshot_max_entries'])}"
    yield "bytes", _budget(stats["snapshot_bytes"], stats["snapshot_capacity_bytes"])
    if stats["snapshot_capacity_derivation"]:
        yield "capacity", stats["snapshot_capacity_derivation"]
    yield "entries", f"{entries} ({kinds})"
    yield "idle limit", tables.ttl_text(stats["snapshot_ttl_seconds"])
    yield "hits", _hits(stats, "snapshot_")
    yield "inserts", count(stats["snapshot_inserts"])
    left = f"{count(stats['snapshot_supersedes'])} superseded"
    left += f", {count(stats['snapshot_replaced'])} replaced"
    yield "left", f"{_evictions(stats, 'snapshot_')}, {left}"


def _pool(stats: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if not stats["paged_block_size"]:
        yield "state", "none (whole prefixes are kept)"
        return
    count = tables.count_text
    live, allocated = stats["paged_blocks_live"], stats["paged_blocks_allocated"]
    yield "blocks", f"{tables.bar(live, allocated)} live of {count(allocated)}"
    yield "shared", f"{count(stats['paged_blocks_shared'])} blocks of two or more owners"
    used, reserved = stats["paged_bytes_in_use"], stats["paged_bytes_reserved"]
    yield "bytes", f"{tables.size_text(used)} of {tables.size_text(reserved)} reserved"
    yield "batch tails", tables.size_text(stats["batch_tail_bytes"])


def _work(stats: dict[str, Any]) -> Iterator[tuple[str, str]]:
    count = tables.count_text
    prompt, reused = stats["prompt_tokens"], stats["prompt_tokens_reused"]
    yield "prompt tokens", count(prompt)
    yield "reused", f"{count(reused)} ({tables.share_text(reused, prompt)})"
    yield "computed", count(stats["prompt_tokens_computed"])
    yield "generated", count(stats["completion_tokens"])
    if stats["background_tokens_computed"] or stats["prefetch_run"]:
        yield "in background", count(stats["background_tokens_computed"])
        yield (
            "prefetches",
            f"{count(stats['prefetch_run'])} run, {stats['prefetch_skipped']} skipped",
        )
    yield "cached bytes", tables.size_text(stats["cache_bytes_total"])


def _rejects(stats: dict[str, Any]) -> Iterator[tuple[str, str]]:
    seen = {
        name.removeprefix(_REJECTS): number
        for name, number in stats.items()
        if name.startswith(_REJECTS) and number
    }
    yield "donations", f"{tables.count_text(stats['insert_rejects'])} declined"
    for reason, number in seen.items():
        newest = stats.get(f"last_reject_{reason}_at_unix_ms")
        when = "" if newest is None else f", the last at {_moment(newest)}"
        yield reason, f"{tables.count_text(number)}{when}"
    if stats["last_reject_reason"] is not None:
        moment = _moment(stats["last_reject_at_unix_ms"])
        sequence = stats["last_reject_seq_id"]
        which = "" if sequence is None else f", sequence {sequence}"
        yield (
            "last",
            f"{stats['last_reject_reason']} at {moment},"
            f" {tables.count_text(stats['last_reject_context_len'])} tokens{which}",
        )


def _moment(unix_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_ms / 1000))


def _budget(used: int, capacity: int) -> str:
    return f"{tables.bar(used, capacity)}  {tables.size_text(used)} of {tables.size_text(capacity)}"


def _hits(stats: dict[str, Any], prefix: str) -> str:
    hits, lookups = stats[f"{prefix}hits"], stats[f"{prefix}lookups"]
    rate = tables.share_text(hits, lookups)
    return f"{tables.count_text(hits)} of {tables.count_text(lookups)} lookups ({rate})"


def _evictions(stats: dict[str, Any], prefix: str) -> str:
    reasons = ("lru", "ttl", "flush", "resize")
    parts = (f"{tables.count_text(stats[f'{prefix}evictions_{why}'])} {why}" for why in reasons)
    return ", ".join(parts)
