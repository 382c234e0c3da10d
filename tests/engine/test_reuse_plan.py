"""How prompts are reused is decided by the caches, the settings and the limits, in this order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine_harness import CoreHarness, make_settings
from mlxceld.engine.capacities import plan_capacities
from mlxceld.engine.reuse_plan import ReuseKind, plan_reuse
from mlxceld.prompt_cache.reports import Limits

PAGEABLE = {"pageable": 2}
HYBRID = {"pageable": 1, "recurrent": 3}
ON, OFF = Limits(100, 10, 0.0), Limits(0, 10, 0.0)
NO_ENTRIES = Limits(100, 0, 0.0)


@pytest.mark.parametrize(
    ("caches", "settings", "limits", "kind", "store"),
    [
        (PAGEABLE, {}, ON, ReuseKind.BLOCKS, "kv"),
        (PAGEABLE, {}, OFF, ReuseKind.BLOCKS, "kv"),
        (PAGEABLE, {"kv_backend": "dense"}, ON, ReuseKind.WHOLE, "kv"),
        (HYBRID, {}, ON, ReuseKind.SNAPSHOTS, "snapshots"),
        (HYBRID, {}, OFF, ReuseKind.WHOLE, "kv"),
        (HYBRID, {}, NO_ENTRIES, ReuseKind.WHOLE, "kv"),
        (HYBRID, {"kv_backend": "dense"}, ON, ReuseKind.WHOLE, "kv"),
        (HYBRID, {"prompt_cache": {"enabled": False}}, ON, ReuseKind.NONE, "kv"),
    ],
)
def test_each_way_and_its_store(
    caches: dict[str, int],
    settings: dict[str, Any],
    limits: Limits,
    kind: ReuseKind,
    store: str,
    tmp_path: Path,
) -> None:
    given = {"kv_backend": "paged", **settings}
    plan = plan_reuse(caches, make_settings(tmp_path, **given), limits)
    assert (plan.kind, plan.store) == (kind, store)
    assert plan.reason


@pytest.mark.parametrize(
    ("family", "limits", "kind"),
    [
        ("llama", (1 << 30, 9, 0.0), ReuseKind.BLOCKS),
        ("qwen3_next", (1 << 30, 9, 0.0), ReuseKind.SNAPSHOTS),
        ("qwen3_next", (0, 9, 0.0), ReuseKind.WHOLE),
    ],
)
def test_what_is_made_is_what_was_decided_with_one_store(
    core: Callable[..., CoreHarness],
    family: str,
    limits: tuple[int, int, float],
    kind: ReuseKind,
) -> None:
    bench = core(family, cache=True, backend="paged", snapshots=limits)
    assert bench.reuse.kind == kind
    assert bench.cache.stores == (bench.reuse.store,)


def test_without_snapshots_the_capacity_is_that_of_the_store_that_is_used(
    tiny_model: Any, tmp_path: Path
) -> None:
    settings = make_settings(
        tmp_path, kv_backend="paged", prompt_cache={"snapshot_capacity_bytes": 0}
    )
    model = tiny_model("qwen3_next")
    plan = plan_reuse(model.status.layer_caches, settings, OFF)
    made = plan_capacities(model, plan.store, 1000).capacities(settings, ())
    assert made.kv.bytes == 1000
    assert made.snapshots.bytes == 0
