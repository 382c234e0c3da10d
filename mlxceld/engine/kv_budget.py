"""How much memory keys and values may take: the operator's word, or what the device leaves."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mlxceld.config.units import readable_bytes

_SHARE = 0.8
_LEAST_RESERVE = 256 * 2**20
_RESERVE_SHARE = 0.05
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class KvBudget:
    """The ceiling of block pool and batch tails in bytes, and how it came about."""

    bytes: int
    derivation: str


def kv_budget(setting: int | None, weight_bytes: int, device_bytes: int) -> KvBudget:
    """The setting, or (device memory - weights - activation reserve) x 0.8, at least 0.

    The reserve for what a forward pass needs is 5% of the device's memory, at least 256 MiB.
    """
    if setting is not None:
        return KvBudget(setting, "as set")
    reserve = max(_LEAST_RESERVE, int(device_bytes * _RESERVE_SHARE))
    left = max(0, int((device_bytes - weight_bytes - reserve) * _SHARE))
    terms = " - ".join(readable_bytes(term) for term in (device_bytes, weight_bytes, reserve))
    return KvBudget(left, f"({terms}) x {_SHARE}: device, weights, activations")


def device_memory() -> int:
    """Bytes that this process may use: what Metal recommends, else the machine's or container's."""
    if mx.metal.is_available():
        recommended = mx.device_info().get("max_recommended_working_set_size")
        if isinstance(recommended, int):
            return recommended
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sys.platform == "linux":
        total = min(total, container_limit(_CGROUP_LIMIT) or total)
    return total


def container_limit(file: Path) -> int | None:
    """The memory limit in a control group's file, None without one."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
