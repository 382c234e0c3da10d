"""``CacheList``: several caches in the place of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import CacheList

from mlxceld.models.caches.adapter import CacheAdapter
from mlxceld.models.caches.kinds import CacheKind


class CompositeAdapter(CacheAdapter):
    """Who walks over leaves never meets one: :func:`~mlxceld.models.caches.registry.leaves`."""

    kind = CacheKind.COMPOSITE

    def members(self, cache: Any) -> Sequence[Any]:
        """See :class:`CacheAdapter`."""
        return tuple(cache.caches)

    def with_members(self, members: Sequence[Any]) -> Any:
        """See :class:`CacheAdapter`."""
        return CacheList(*members)
