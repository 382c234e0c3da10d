"""Where the budget of keys and values comes from."""

from __future__ import annotations

from pathlib import Path

from mlxceld.engine.kv_budget import container_limit, device_memory, kv_budget

GIB = 2**30


def test_what_the_operator_sets_holds() -> None:
    budget = kv_budget(5 * GIB, 100 * GIB, 8 * GIB)
    assert budget.bytes == 5 * GIB
    assert budget.derivation == "as set"


def test_it_is_what_weights_and_activations_leave_of_the_device() -> None:
    budget = kv_budget(None, 4 * GIB, 16 * GIB)
    reserve = int(16 * GIB * 0.05)
    assert budget.bytes == int((16 * GIB - 4 * GIB - reserve) * 0.8)
    assert "16.0 GiB - 4.0 GiB - 819.2 MiB" in budget.derivation


def test_a_small_device_keeps_a_reserve_and_never_goes_below_nothing() -> None:
    assert kv_budget(None, GIB, 2 * GIB).bytes == int((2 * GIB - GIB - 256 * 2**20) * 0.8)
    assert kv_budget(None, 3 * GIB, 2 * GIB).bytes == 0


def test_the_device_has_memory() -> None:
    assert device_memory() > 2**28


def test_a_containers_limit_is_read(tmp_path: Path) -> None:
    file = tmp_path / "memory.max"
    assert container_limit(file) is None
    file.write_text("max\n")
    assert container_limit(file) is None
    file.write_text("1073741824\n")
    assert container_limit(file) == GIB
