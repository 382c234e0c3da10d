"""The default capacities of the two stores, from what the model's own state takes. No MLX here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from mlxceld.config.units import readable_bytes

KV_CAPACITY = 2 * 2**30
"""Bytes that the store of prefixes may take at least, where nothing else is known."""

SNAPSHOT_CAPACITY = 512 * 2**20
"""Bytes that the store of snapshots may take at least, where nothing else is known."""

_ENTRIES = 6
"""How many long conversations a store is to hold by default."""

_LONG = 8192
"""Tokens of a conversation that counts as long."""


Store = Literal["kv", "snapshots"]


class Sized(Protocol):
    """What a model's state takes; see :class:`mlxceld.models.sizing.StateSize`."""

    def bytes_at(self, tokens: int) -> int:
        """Bytes of one entry of ``tokens`` tokens."""

    def describe(self) -> str:
        """The size in words."""


@dataclass(frozen=True, slots=True)
class MemoryTerms:
    """Bytes: what the device may hold, what the model's weights take of it, and the ceiling for
    keys and values, running and stored together.
    """

    device: int
    weights: int
    kv_cache_budget: int

    @property
    def left(self) -> int:
        """What is left beside the model."""
        return max(0, self.device - self.weights)


@dataclass(frozen=True, slots=True)
class Capacity:
    """A store's capacity in bytes, and in words how it came about."""

    bytes: int
    derivation: str


@dataclass(frozen=True, slots=True)
class Capacities:
    """Both stores' capacities."""

    kv: Capacity
    snapshots: Capacity


def derive_capacities(
    size: Sized,
    context_length: int,
    memory: MemoryTerms,
    *,
    kv: int,
    snapshots: int,
    given: Collection[Store] = (),
    used: Collection[Store] = ("kv", "snapshots"),
) -> Capacities:
    """The capacities of both stores, ``kv`` and ``snapshots`` being those that were configured.

    What the operator has set (``given``) stays, and so does what the model has no use for. The
    rest is raised to hold a few long conversations, up to a quarter of what the model leaves; then
    it is cut until both stores together fit the budget for keys and values, and half of what is
    left.
    """
    tokens = min(context_length, _LONG)
    entry = size.bytes_at(tokens)
    wanted = min(_ENTRIES * entry, memory.left // 4)
    why = (
        f"{readable_bytes(wanted)}, the smaller of {_ENTRIES} entries of {tokens:,} tokens at"
        f" {readable_bytes(entry)} ({size.describe()}) and a quarter of the"
        f" {readable_bytes(memory.left)} left beside the model"
    )
    made: dict[Store, Capacity] = {}
    configured: tuple[tuple[Store, int, int], ...] = (
        ("kv", kv, KV_CAPACITY),
        ("snapshots", snapshots, SNAPSHOT_CAPACITY),
    )
    for store, size_bytes, least in configured:
        if store in given:
            made[store] = Capacity(size_bytes, "set by the operator")
        elif store not in used:
            made[store] = Capacity(size_bytes, "default; this model does not use the store")
        elif wanted > least:
            made[store] = Capacity(wanted, why)
        else:
            made[store] = Capacity(least, f"default, not less than {why}")
    _cut(made, memory, [s for s in made if s in used and s not in given], used)
    return Capacities(made["kv"], made["snapshots"])


def _cut(
    made: dict[Store, Capacity], memory: MemoryTerms, free: list[Store], used: Collection[Store]
) -> None:
    """Make the used stores fit together; only the ``free`` ones give, each in its proportion."""
    bound = min(memory.kv_cache_budget, memory.left // 2)
    room = max(0, bound - sum(made[store].bytes for store in used if store not in free))
    total = sum(made[store].bytes for store in free)
    if total <= room:
        return
    for store in free:
        capacity = made[store]
        made[store] = Capacity(
            capacity.bytes * room // total,
            f"{capacity.derivation}; cut to fit {readable_bytes(bound)}, the smaller of the budget"
            f" for keys and values ({readable_bytes(memory.kv_cache_budget)}) and half of what is"
            " left",
        )
