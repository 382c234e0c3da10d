"""What the engine can be told to do between two steps, as plain data.

A command names what is to be done and with what; :class:`~mlxceld.engine.cache_admin.CacheAdmin`
does it. There are no others than those of :data:`Command`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from mlxceld.prompt_cache.reports import BudgetChange

StoreName = Literal["all", "kv", "snapshots"]


@dataclass(frozen=True, slots=True)
class Flush:
    """Drop cached entries, all or those of a session (its raw key or its hash)."""

    store: str = "all"
    session: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Resize:
    """Change the live budgets, if they are still those of ``generation``."""

    changes: BudgetChange
    dry_run: bool = False
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class ListEntries:
    """List what is stored, the newest uses first."""

    store: str = "all"
    session: str | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """Keep a stored prompt; with ``keep`` off only find it."""

    tokens: Sequence[int]
    session: str
    template_signature: str
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Unpin:
    """Leave a pinned entry to its age."""

    digest: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Make all checks of the load anew."""


@dataclass(frozen=True, slots=True)
class Explain:
    """Foretell what a request would reuse."""

    tokens: Sequence[int]
    session: str
    template_signature: str


Command = Flush | Resize | ListEntries | Pin | Unpin | Verify | Explain
