"""The contract between the engine and what keeps prompts: a cache of prefixes, and its memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from mlxceld.engine.row_reading import RowReading
    from mlxceld.engine.sequence import Sequence
    from mlxceld.kv.pool import PoolStats
    from mlxceld.kv.row_caches import Caches
    from mlxceld.prompt_cache.entry_store import EntryStore
    from mlxceld.prompt_cache.match import Match


class PrefixCache(ABC):
    """What sequences take from the store before prefill, and give to it at their end.

    *Locked* is nothing: a match is a value and holds no memory, so whatever it names may be evicted
    while it is carried. It is brought up to date by :meth:`match` and :meth:`adopt`.
    *Evicted* may be every entry but pinned ones. What was adopted stays: blocks by references of
    the adopter's own, a state or a row by being the adopter's.
    *Freed* is what an adopter holds by ``reading.release``, on every way out and after
    :meth:`donate`; rows are freed with ``sequence.row``.

    All of it but :meth:`match`, :meth:`should_donate` and ``shares_early`` only while no step is in
    flight: it may write to memory that a step reads.
    """

    kind: ClassVar[str]
    """How prompts are reused, in a word or two for status and log."""

    store: EntryStore[Any]
    """Where prompts, or states on their way, are kept."""

    reading: RowReading
    """How running sequences read what they have adopted."""

    @property
    @abstractmethod
    def shares_early(self) -> bool:
        """Whether a beginning can be adopted from a sequence that is still in prefill."""

    @abstractmethod
    def match(self, sequence: Sequence) -> Match[Any]:
        """What :meth:`adopt` would adopt now, at most all but the last token of the prompt.

        The first time a store is looked up in; the sequence carries what was found, and later it
        is only brought up to date. Counted nowhere.
        """

    @abstractmethod
    def adopt(self, sequence: Sequence) -> None:
        """Give a sequence what it matches, so that it carries no match any more.

        Sets ``row``, ``prefilled`` and ``cached``; on a miss they stay as they are.
        """

    @abstractmethod
    def share(self, sequence: Sequence) -> None:
        """Store what a sequence in prefill has computed so far; its row stays as it is.

        Nobody fails where that fails: it is logged, and the sequence goes on.
        """

    @abstractmethod
    def on_prefill_progress(self, sequence: Sequence, row: Callable[[], Caches]) -> None:
        """A sequence in prefill has come to ``prefilled`` tokens; ``row`` gives its caches.

        Nobody fails where keeping its state fails: it is logged, and the sequence goes on.
        """

    @abstractmethod
    def should_donate(self, sequence: Sequence) -> bool:
        """Whether a sequence's caches will be worth taking out of the batch when it ends."""

    @abstractmethod
    def donate(self, sequence: Sequence) -> None:
        """Store what a sequence computed; a refusal is recorded with its reason."""


class StoredMemory(ABC):
    """The part of the budget for keys and values that is stored or shared; sizes are bytes.

    Every :class:`PrefixCache` is one of these too. Only while no step is in flight.
    """

    token_bytes: int
    """What a token's keys and values take in a row."""

    @abstractmethod
    def reserved_bytes(self) -> int:
        """What is stored or shared takes so much of the budget."""

    @abstractmethod
    def reserve(self, nbytes: int) -> None:
        """Leave a part of the budget to what running sequences hold in their rows."""

    @abstractmethod
    def unevictable_bytes(self, running: Iterable[Sequence], match: Match[Any]) -> int:
        """What cannot be freed: what is being read, or would be adopted, which counts as used."""

    @abstractmethod
    def evict_to(self, most: int, sequences: Iterable[Sequence]) -> None:
        """Give up entries until at most ``most`` bytes are reserved, as far as that can be.

        Blocks may move: what ``reading.prefix_of`` gave is void. ``sequences`` are all in flight.
        """

    @abstractmethod
    def settle(self, sequences: Iterable[Sequence]) -> None:
        """Give memory back after entries have gone; blocks may move, as with :meth:`evict_to`."""

    @abstractmethod
    def pool_stats(self) -> PoolStats | None:
        """The block pool's numbers; None without one."""

    @abstractmethod
    def check(self, sequences: Iterable[Sequence]) -> None:
        """Recount everything; raises AssertionError with the numbers that do not agree."""


class PrefixMemory(PrefixCache, StoredMemory):
    """A cache of prefixes together with its memory."""
