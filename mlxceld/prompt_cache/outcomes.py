"""What the cache decided for each request, kept until its log line is written."""

from __future__ import annotations

from dataclasses import dataclass

MOST_KEPT = 4096
"""Requests whose line never comes are forgotten beyond this many, the oldest first."""


PREFIX_KINDS = frozenset({"blocks", "prefix"})
"""Kinds of the KV store's entries; every other kind is a snapshot's."""


@dataclass(slots=True)
class CacheOutcome:
    """One request's dealings with the cache.

    ``entry`` is the kind of what it adopted (``blocks``, ``prefix`` or a snapshot's); the rejects
    are reasons, None where nothing was declined.
    """

    entry: str | None = None
    adopt_reject: str | None = None
    donate_reject: str | None = None


class Outcomes:
    """Outcomes by sequence id. Belongs to the engine thread."""

    def __init__(self) -> None:
        self._kept: dict[int, CacheOutcome] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def adopted(self, seq_id: int | None, kind: str | None) -> None:
        """A request adopted an entry of this kind; None takes that back."""
        if seq_id is not None:
            self._of(seq_id).entry = kind

    def declined(self, seq_id: int | None, reason: str, *, donation: bool) -> bool:
        """Note a reject; False where this request has one in this direction already."""
        if seq_id is None:
            return True
        outcome = self._of(seq_id)
        if donation:
            if outcome.donate_reject is not None:
                return False
            outcome.donate_reject = reason
        else:
            if outcome.adopt_reject is not None:
                return False
            outcome.adopt_reject = reason
        return True

    def entry_of(self, seq_id: int) -> str | None:
        """The kind of what a request adopted, so far."""
        found = self._kept.get(seq_id)
        return None if found is None else found.entry

    def take(self, seq_id: int) -> CacheOutcome:
        """A request's outcome, which is forgotten here: its line is being written."""
        return self._kept.pop(seq_id, None) or CacheOutcome()

    def _of(self, seq_id: int) -> CacheOutcome:
        found = self._kept.get(seq_id)
        if found is None:
            while len(self._kept) >= MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            found = self._kept[seq_id] = CacheOutcome()
        return found
