from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine_harness import CoreHarness, make_settings, random_prompt
from mlxceld.config import resolve
from mlxceld.engine.capacities import log_capacities, plan_capacities
from mlxceld.models.boundaries import Boundary
from mlxceld.models.budgets import KV_CAPACITY, SNAPSHOT_CAPACITY
from mlxceld.models.sizing import measure
from tiny_models import tiny_families

GIB = 2**30

PAGEABLE = ("llama", "qwen3", "deepseek_v3")

LIMITS = {
    "prompt_cache.snapshot_capacity_bytes": ("64MiB", 64 * 2**20),
    "prompt_cache.snapshot_max_entries": ("7", 7),
    "prompt_cache.snapshot_ttl": ("90s", 90.0),
}
"""The limits of the store of snapshots: as they are written, and what they are then."""


def test_unset_capacities_are_the_defaults_of_a_small_model(
    tiny_model: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make_settings(tmp_path)
    cache = settings.prompt_cache
    assert (cache.snapshot_capacity_bytes, cache.snapshot_max_entries, cache.snapshot_ttl) == (
        536_870_912,
        4096,
        7200,
    )
    with caplog.at_level(logging.INFO, "mlxceld.engine.capacities"):
        plan = plan_capacities(tiny_model("qwen3_5"), "snapshots", 100 * GIB)
        made = plan.capacities(settings, ())
        log_capacities(plan, made, settings)
    assert made.snapshots.bytes == SNAPSHOT_CAPACITY
    assert made.kv.bytes == KV_CAPACITY
    text = caplog.text
    assert "state of a sequence: 512 bytes a token, 11,264 bytes of fixed state" in text
    assert f"snapshots capacity: {SNAPSHOT_CAPACITY} bytes (default, not less than" in text
    assert f"snapshot limits: {SNAPSHOT_CAPACITY} bytes, 4096 entries, 7200 s" in text


def test_the_budget_for_keys_and_values_bounds_a_default(tiny_model: Any, tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    assert plan_capacities(tiny_model("llama"), "kv", GIB).capacities(settings, ()).kv.bytes == GIB
    assert (
        plan_capacities(tiny_model("llama"), "kv", 100 * GIB).capacities(settings, ()).kv.bytes
        == KV_CAPACITY
    )


def test_what_the_operator_has_set_is_kept(tiny_model: Any, tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    given = ("prompt_cache.capacity_bytes",)
    # Even if it is what the default would be, and if it fits nowhere.
    made = plan_capacities(tiny_model("llama"), "kv", 1).capacities(settings, given)
    assert (made.kv.bytes, made.kv.derivation) == (KV_CAPACITY, "set by the operator")
    settings = make_settings(tmp_path, prompt_cache={"snapshot_capacity_bytes": 5})
    assert (
        plan_capacities(tiny_model("mamba"), "snapshots", GIB)
        .capacities(settings, ())
        .snapshots.bytes
        == 5
    )


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("where", ["flag", "env", "file"])
def test_flag_variable_and_file_set_each_limit(name: str, where: str, tmp_path: Path) -> None:
    written, expected = LIMITS[name]
    flags = {name: expected} if where == "flag" else {}
    variable = "MLXCEL_" + name.replace(".", "_").upper()
    environ = {variable: written} if where == "env" else {}
    file = None
    if where == "file":
        file = tmp_path / "mlxceld.yaml"
        file.write_text(f"{name}: {written}\n")
    resolved = resolve(flags, environ=environ, config_file=file, search=False)
    assert getattr(resolved.settings.prompt_cache, name.split(".")[1]) == expected
    assert resolved.warnings == ()
    assert resolved.sources[name].value == where


@pytest.mark.parametrize("name", LIMITS)
def test_a_variable_that_cannot_be_read_is_warned_about_and_ignored(name: str) -> None:
    variable = "MLXCEL_" + name.replace(".", "_").upper()
    resolved = resolve({}, environ={variable: "plenty"}, search=False)
    default = resolve({}, environ={}, search=False).settings.prompt_cache
    field = name.split(".")[1]
    assert getattr(resolved.settings.prompt_cache, field) == getattr(default, field)
    assert [variable in warning for warning in resolved.warnings] == [True]
    zero = resolve({}, environ={variable: "0"}, search=False)
    assert getattr(zero.settings.prompt_cache, field) == 0
    assert zero.warnings == ()


@pytest.mark.parametrize("family", [f for f in tiny_families() if f not in PAGEABLE])
async def test_a_stored_snapshot_has_the_bytes_foretold(
    family: str, core: Callable[..., CoreHarness]
) -> None:
    bench = core(family, cache=True, backend="paged")
    kept, count = bench.store, 83
    marks = (Boundary(count, "boundary"),)
    await bench.alone(random_prompt(1, count + 4), boundaries=marks, max_tokens=2)
    size = measure(bench.model.module)
    pool = bench.reuse.pool_stats()
    block = 0 if pool is None else pool.block_size
    # Blocks are whole; what they hold is of pageable layers.
    in_blocks = -(-count // block) * block * size.bytes_per_token if block else 0
    assert kept.bytes == size.snapshot_bytes_at(count) + in_blocks
    assert size.bytes_at(count) == size.snapshot_bytes_at(count) + count * size.bytes_per_token
