"""Taking back a forward pass that failed half way: caches of keys and values forget its tokens.

What such a pass wrote lies behind the position that is restored, where nothing reads it and the
next pass overwrites it. So nothing is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlxceld.kv.row_caches import Caches
from mlxceld.models.caches.registry import adapter_of, leaves


@dataclass(frozen=True, slots=True)
class Mark:
    """Where one cache stands: its position, and whether it has no array yet."""

    cache: Any
    position: dict[str, Any]
    empty: bool


def mark(caches: Caches) -> list[Mark]:
    """Where caches stand before a pass; raises TypeError for one that cannot be taken back."""
    marks = []
    for cache in leaves(caches):
        position = adapter_of(cache).position(cache)
        marks.append(Mark(cache, position, cache.keys is None))
    return marks


def rewind(marks: list[Mark]) -> None:
    """Put caches back to where they stood."""
    for one in marks:
        for name, value in one.position.items():
            setattr(one.cache, name, value)
        if one.empty:
            one.cache.keys = one.cache.values = None
