"""Whether the budgets of the stores are neither too large nor too small."""

from __future__ import annotations

from collections.abc import Iterator

from mlxctl import tables
from mlxctl.checks.scene import Finding, Scene


def check_memory(scene: Scene) -> Iterator[Finding]:
    """Whether the budgets of the stores fit beside the model."""
    status, stats = scene.status, scene.stats
    if status is None or stats is None or status["model"] is None:
        return
    limit, weights = status["memory"]["limit"], status["model"]["weight_bytes"]
    budget = stats["capacity_bytes"] + stats["snapshot_capacity_bytes"]
    size = tables.size_text
    if not limit:
        yield Finding("memory", "unknown", "the device tells no limit")
    elif weights + budget > limit:
        yield Finding(
            "memory",
            "wrong",
            f"the model ({size(weights)}) and the caches' budgets ({size(budget)}) exceed the"
            f" limit of {size(limit)}",
            f"mlxctl cache resize --capacity {max(0, (limit - weights) // 2)}",
        )
    else:
        yield Finding(
            "memory", "ok", f"{size(limit - weights)} beside the model, budgets {size(budget)}"
        )


def check_budget(scene: Scene) -> Iterator[Finding]:
    """Whether anything fits into the stores at all."""
    stats = scene.stats
    if stats is None:
        return
    for store, prefix, flag in (
        ("kv", "", "--capacity"),
        ("snapshots", "snapshot_", "--snapshot-capacity"),
    ):
        refused = stats[f"{prefix}rejections_oversized"]
        capacity = stats[f"{prefix}capacity_bytes"]
        if refused and not stats[f"{prefix}inserts"]:
            level, note = "wrong", "nothing was ever stored: the budget is below one entry"
        elif refused:
            level, note = "note", "entries were larger than the budget"
        else:
            continue
        yield Finding(
            f"{store} budget",
            level,
            f"{note} ({refused} refused at {tables.size_text(capacity)})",
            f"mlxctl cache resize {flag} {max(2 * capacity, 2**30)}",
        )
    block = stats["paged_block_size"] and stats["paged_blocks_live"]
    one = stats["paged_bytes_in_use"] // stats["paged_blocks_live"] if block else 0
    if 0 < stats["capacity_bytes"] < one:
        yield Finding(
            "kv budget",
            "wrong",
            f"the budget is below one block ({tables.size_text(one)})",
            "mlxctl cache resize --capacity 2GiB",
        )
    if not stats["enabled"]:
        yield Finding(
            "kv store", "slow", "disabled: nothing is reused", "mlxctl cache resize --capacity 2GiB"
        )
