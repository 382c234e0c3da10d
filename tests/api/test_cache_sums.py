"""The cache's numbers over HTTP: their form, and sums that hold at every moment under load."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from mlxceld.prompt_cache.rejects import RejectReason
from stack_harness import Stack, open_stack, series
from tiny_models import TinyModels

REQUESTS, CONCURRENCY, SCRAPES = 300, 8, 50
LEFT = ("evictions_lru", "evictions_ttl", "evictions_flush", "evictions_resize")


def check_stats(stats: dict[str, Any]) -> None:
    """The sums that the statistics promise."""
    assert stats["prompt_tokens"] == (
        stats["prompt_tokens_computed"] + stats["prompt_tokens_reused"]
    ), stats
    for prefix, more in (("", ("consumed", "replaced")), ("snapshot_", ())):
        hits, misses = stats[f"{prefix}hits"], stats[f"{prefix}misses"]
        assert stats[f"{prefix}lookups"] == hits + misses, stats
        left = sum(stats[f"{prefix}{name}"] for name in (*LEFT, *more))
        if prefix:
            left += stats["snapshot_supersedes"] + stats["snapshot_replaced"]
        assert stats[f"{prefix}inserts"] == stats[f"{prefix}entries"] + left, stats
    assert stats["reject_oversized"] == (
        stats["rejections_oversized"] + stats["snapshot_rejections_oversized"]
    )
    assert stats["insert_rejects"] <= sum(stats[f"reject_{reason}"] for reason in RejectReason)
    assert stats["bytes"] <= stats["capacity_bytes"], stats
    assert stats["paged_blocks_allocated"] == (
        stats["paged_blocks_live"] + stats["paged_blocks_free"]
    )


def check_scrape(text: str) -> dict[str, float]:
    """The same sums over one scrape, whose series are returned."""
    found = series(text)

    def total(family: str) -> float:
        return sum(value for name, value in found.items() if name.split("{")[0] == family)

    cache = "mlxcel_prompt_cache_"
    assert found["mlxcel_prompt_tokens_total"] == (
        found["mlxcel_prompt_tokens_computed_total"] + found[f"{cache}prefix_tokens_reused_total"]
    )
    assert found[f"{cache}inserts_total"] == (
        found[f"{cache}entries"] + total(f"{cache}removals_total")
    )
    evictions = {n: v for n, v in found.items() if n.startswith(f"{cache}evictions_total")}
    for name, value in evictions.items():
        assert value == found[name.replace("evictions", "removals")]
    ended = total("mlxcel_requests_total")
    assert found["mlxcel_request_seconds_count"] == ended
    return found


async def _one(stack: Stack, number: int, rng: random.Random) -> None:
    kind = rng.choice(("hit", "hit", "miss", "short", "large", "cancel", "chat"))
    if kind == "hit":
        await stack.complete("shared beginning " * 4 + "x" * (number % 3))
    elif kind == "miss":
        await stack.complete("".join(rng.choices("abcdefgh", k=60)))
    elif kind == "short":
        await stack.complete("hi", max_tokens=1)
    elif kind == "large":
        await stack.complete("y" * 400, max_tokens=1)
    elif kind == "chat":
        await stack.chat([{"role": "user", "content": f"what is {number % 5}?"}])
    else:
        body = {"prompt": "shared beginning " * 6, "max_tokens": 100, "stream": True}
        async with stack.public.post("/v1/completions", json=body) as response:
            await response.content.readline()


async def test_sums_hold_in_every_scrape_under_load(
    tiny_models: TinyModels, tmp_path: Path
) -> None:
    flags = {"prompt_cache.capacity_bytes": 150_000, "prompt_cache.max_entries": 12}
    folder = tiny_models.folder("llama", context_length=2048)
    async with open_stack(folder, tmp_path, **flags) as stack:
        rng = random.Random(7)
        numbers = iter(range(REQUESTS))

        async def work() -> None:
            for number in numbers:
                if number % 40 == 39:
                    await stack.order("POST", "cache/flush")
                if number % 90 == 89:
                    entries = 1 if number % 180 == 89 else 12
                    await stack.order("PATCH", "cache/budget", {"max_entries": entries})
                if number % 25 == 24:
                    await stack.order("PUT", "trace", {"enabled": number % 2 == 0})
                await _one(stack, number, rng)
                if number % (REQUESTS // SCRAPES) == 0:
                    due.release()

        async def watch() -> None:
            before: dict[str, float] = {}
            for _ in range(SCRAPES):
                # In the middle of the others' requests, evenly over all of them.
                await due.acquire()
                found = check_scrape(await stack.scrape())
                check_stats(await (await stack.public.get("/v1/cache/stats")).json())
                # Counters never fall: no reading is older than the one before it.
                fallen = {n: (v, found[n]) for n, v in before.items() if found[n] < v}
                assert not fallen
                before = {n: v for n, v in found.items() if n.split("{")[0].endswith("_total")}

        due = asyncio.Semaphore(0)
        await asyncio.gather(watch(), *(work() for _ in range(CONCURRENCY)))
        stats = await stack.stats()
        check_stats(stats)
        check_scrape(await stack.scrape())
        # It was what it was meant to be.
        for name in ("hits", "misses", "evictions_lru", "evictions_flush", "evictions_resize"):
            assert stats[name] > 0, name
        assert stats["reject_prefix_too_short"] > 0
        assert stats["reject_oversized"] > 0
        cancelled = 'mlxcel_requests_total{endpoint="completions",outcome="cancelled"}'
        assert series(await stack.scrape())[cancelled] > 0


KEYS: dict[str, type] = {
    **dict.fromkeys(("enabled", "apc_enabled"), bool),
    "block_size": int,
    "hash": str,
    **dict.fromkeys(("entries", "bytes", "capacity_bytes", "max_entries"), int),
    "ttl_seconds": float,
    **dict.fromkeys(("hits", "misses", "lookups"), int),
    "hit_rate": float,
    **dict.fromkeys(
        (
            "inserts",
            *LEFT,
            "consumed",
            "replaced",
            "rejections_oversized",
            "insert_rejects",
            "total_blocks_stored",
            "unique_block_hashes",
            "apc_active_entries",
        ),
        int,
    ),
    "snapshot_enabled": bool,
    **dict.fromkeys(
        (
            "snapshot_entries",
            "snapshot_entries_head",
            "snapshot_entries_boundary",
            "snapshot_entries_completion",
            "snapshot_bytes",
            "snapshot_capacity_bytes",
            "snapshot_max_entries",
        ),
        int,
    ),
    "snapshot_ttl_seconds": float,
    **dict.fromkeys(("snapshot_hits", "snapshot_misses", "snapshot_lookups"), int),
    "snapshot_hit_rate": float,
    **dict.fromkeys(
        (
            "snapshot_inserts",
            "snapshot_supersedes",
            "snapshot_replaced",
            *(f"snapshot_{name}" for name in LEFT),
            "snapshot_rejections_oversized",
            "paged_block_size",
            "paged_blocks_allocated",
            "paged_blocks_live",
            "paged_blocks_free",
            "paged_blocks_shared",
            "paged_bytes_reserved",
            "paged_bytes_in_use",
            "paged_block_budget",
            "batch_tail_bytes",
            "prompt_tokens",
            "prompt_tokens_computed",
            "prompt_tokens_reused",
            "completion_tokens",
            "background_tokens_computed",
            "prefetch_run",
            "prefetch_skipped",
            "prefetch_tokens",
            "cache_bytes_total",
            *(f"reject_{reason}" for reason in RejectReason),
        ),
        int,
    ),
    "last_reject_reason": str,
    **dict.fromkeys(
        ("last_reject_seq_id", "last_reject_context_len", "last_reject_at_unix_ms"), int
    ),
    **dict.fromkeys(("capacity_derivation", "snapshot_capacity_derivation"), str),
}
"""The keys of ``/v1/cache/stats`` in their order, each with its JSON type."""


@pytest.mark.parametrize(
    ("flags", "enabled", "paged", "reason"),
    [
        ({}, True, True, "prefix_too_short"),
        ({"prompt_cache.enabled": False}, False, False, "disabled"),
        ({"kv_backend": "dense"}, True, False, "prefix_too_short"),
    ],
    ids=["enabled", "disabled", "dense"],
)
async def test_keys_types_and_nulls(
    tiny_models: TinyModels,
    tmp_path: Path,
    flags: dict[str, Any],
    enabled: bool,
    paged: bool,
    reason: str,
) -> None:
    async with open_stack(tiny_models.folder("llama"), tmp_path, **flags) as stack:
        for after in (False, True):
            stats = await stack.stats()
            assert list(stats) == list(KEYS)
            for name, kind in KEYS.items():
                if name.startswith("last_reject_") and not after:
                    assert stats[name] is None
                elif kind is float:
                    assert type(stats[name]) in (int, float), name
                else:
                    assert type(stats[name]) is kind, name
            assert stats["enabled"] is enabled
            assert stats["apc_enabled"] is paged
            assert (stats["paged_block_size"] > 0) is paged
            # Also a store that is off tells its limits.
            assert stats["capacity_bytes"] > 0
            assert stats["max_entries"] > 0
            await stack.complete("hi", max_tokens=1)
        assert stats["last_reject_reason"] == reason
        assert stats[f"reject_{reason}"] == 1
