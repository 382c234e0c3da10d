"""What a look-up in a store found, as a value that a waiting request carries."""

from __future__ import annotations

import enum
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.radix import as_tokens
from mlxceld.prompt_cache.rejects import RejectReason
from mlxceld.prompt_cache.stored_prefix import StoredPrefix

E = TypeVar("E", bound=StoredPrefix)


class Purpose(enum.Enum):
    """For whom something is adopted: that decides what is counted, and what is told of it."""

    REQUEST = enum.auto()
    """A request, for the first time: counted as its look-up, and told."""

    BACKGROUND = enum.auto()
    """Warming or prefetching: told, and not counted among the requests' look-ups."""

    RESUMED = enum.auto()
    """A request that was preempted and starts anew: neither counted nor told."""

    @property
    def counted(self) -> bool:
        """Whether it is among the look-ups of requests."""
        return self is Purpose.REQUEST

    @property
    def told(self) -> bool:
        """Whether the trace and the request's log line have it."""
        return self is not Purpose.RESUMED


@dataclass(frozen=True, slots=True)
class Query:
    """A prompt as a store is asked for it: at most its first ``max_len`` tokens are adopted."""

    bucket: Bucket
    session: str
    tokens: array[int]
    max_len: int

    @classmethod
    def of(
        cls, bucket: Bucket, session: str, tokens: Sequence[int], max_len: int | None = None
    ) -> Query:
        """The query for ``tokens``: for all but the last one, unless ``max_len`` is given."""
        last = len(tokens) - 1 if max_len is None else max_len
        return cls(bucket, session, as_tokens(tokens), max(last, 0))

    @property
    def usable(self) -> array[int]:
        """The tokens that may be adopted."""
        return self.tokens[: self.max_len]


@dataclass(frozen=True, slots=True)
class Match(Generic[E]):
    """The stored entry that serves a query best, and how many tokens of it: None and 0 if none.

    Nothing is held: the entry may leave the store while this is carried, and its memory with it.
    ``generation`` is that of the store at the time of the look-up; the store tells by it what has
    changed since (see :meth:`EntryStore.renew`). ``rejected`` is why an entry that shares
    ``nearest`` tokens does not serve, where nothing does. ``kind`` is the store's.
    """

    kind: str
    query: Query
    generation: int
    matched: int = 0
    rejected: RejectReason | None = None
    nearest: int = 0
    _entry: weakref.ref[E] | None = None

    def to(self, entry: E, matched: int) -> Match[E]:
        """The same look-up with what it found."""
        return Match(self.kind, self.query, self.generation, matched, _entry=weakref.ref(entry))

    @property
    def entry(self) -> E | None:
        """What was found; None if that is nothing, or gone and forgotten by now."""
        return None if self._entry is None else self._entry()
