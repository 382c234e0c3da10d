"""What is stored, as lists for people: the newest uses first, over all stores."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from mlxceld.prompt_cache.key import Bucket, session_matches
from mlxceld.prompt_cache.reports import EntryList, EntryReport, PinReport


class Listed(Protocol):
    """What choosing entries needs to know of one."""

    session: str
    last_used: float


E = TypeVar("E", bound=Listed)


class Inventoried(Protocol[E]):
    """A store whose entries can be listed."""

    def entries(self) -> list[E]:
        """Every stored entry."""

    def pin(
        self, bucket: Bucket, session: str, tokens: array[int], *, keep: bool = True
    ) -> PinReport:
        """Keep a stored prefix, or only find it; raises PinError."""

    def unpin(self, digest: str) -> PinReport | None:
        """Leave a pinned entry to its age; None if no pinned entry has that digest."""

    def report(self, entry: E) -> EntryReport:
        """What an entry holds and how it was used, without its text."""


def list_entries(
    stores: Iterable[Inventoried[E]], *, session: str | None = None, limit: int | None = None
) -> EntryList:
    """Up to ``limit`` entries of all stores, of one session (raw key or hash) if one is given.

    Only what is listed is described, so that a short list of a large store is quick.
    """
    found: list[tuple[E, Inventoried[E]]] = [
        (entry, store)
        for store in stores
        for entry in reversed(store.entries())
        if session is None or session_matches(entry.session, session)
    ]
    found.sort(key=lambda pair: pair[0].last_used, reverse=True)
    chosen: Sequence[tuple[E, Inventoried[E]]] = found if limit is None else found[:limit]
    return EntryList(tuple(store.report(entry) for entry, store in chosen), len(found))
