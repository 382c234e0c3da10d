"""The prompt cache as the settings have it, before a model has brought its stores. No MLX."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mlxceld.prompt_cache.prompt_cache import PromptCache
from mlxceld.prompt_cache.reports import Budget

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.prompt_cache.rejects import RejectLog
    from mlxceld.prompt_cache.trace import EventSink


def make_prompt_cache(
    settings: Settings, clock: Callable[[], float], on_event: EventSink, rejects: RejectLog
) -> PromptCache:
    """A cache without stores, with the budget that is configured."""
    return PromptCache(
        configured_budget(settings),
        clock,
        on_event,
        rejects,
        enabled=settings.prompt_cache.enabled,
        min_prefix=settings.prompt_cache.min_prefix,
    )


def configured_budget(settings: Settings) -> Budget:
    """The limits of both stores before a model has been looked at."""
    cache = settings.prompt_cache
    return Budget(
        capacity_bytes=cache.capacity_bytes,
        max_entries=cache.max_entries,
        ttl_seconds=cache.ttl,
        snapshot_capacity_bytes=cache.snapshot_capacity_bytes,
        snapshot_max_entries=cache.snapshot_max_entries,
        snapshot_ttl_seconds=cache.snapshot_ttl,
    )
