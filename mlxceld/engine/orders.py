"""What the admin API has done to the stores, on the engine thread and between two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxceld.engine.reuse import PromptReuse
    from mlxceld.prompt_cache.inventory import Inventoried

STORES = ("all", "kv", "snapshots")
"""The names by which orders choose stores."""


def stores_of(reuse: PromptReuse, wanted: str) -> list[Inventoried[Any]]:
    """The stores that an order for ``wanted`` (one of :data:`STORES`) is about."""
    chosen: list[Inventoried[Any]] = []
    if wanted != "snapshots":
        chosen.append(reuse.store)
    # Only models that resume at snapshots have a store of them.
    snapshots = getattr(reuse, "snapshots", None)
    if wanted != "kv" and snapshots is not None:
        chosen.append(snapshots)
    return chosen
