"""Reuse of whole prefixes: a sequence's caches at its end, taken out by who goes on from there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxceld.engine.prefix_cache import PrefixMemory
from mlxceld.engine.reuse import (
    bucket_of,
    carried_match,
    purpose_of,
    reject_without_row,
    worth_keeping,
)
from mlxceld.engine.reuse_plan import ReuseKind
from mlxceld.engine.row_reading import OwnRows
from mlxceld.kv import row_caches
from mlxceld.kv.memory import release_freed
from mlxceld.kv.row_caches import Caches
from mlxceld.prompt_cache.match import Match, Purpose
from mlxceld.prompt_cache.rejects import RejectReason

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence
    from mlxceld.kv.pool import PoolStats
    from mlxceld.prompt_cache.dense_store import DenseStore
    from mlxceld.prompt_cache.whole_entry import Entry

log = logging.getLogger(__name__)


class WholePrefixReuse(PrefixMemory):
    """Whole prefixes with their caches, for any family: a sequence's end is an exact state.

    An adopted entry leaves the store and comes back, longer, when its adopter ends.
    """

    kind = ReuseKind.WHOLE.value
    store: DenseStore[Caches]
    shares_early = False  # a row in use cannot be given away

    def __init__(
        self, store: DenseStore[Caches], model_id: str, *, token_bytes: int, max_bytes: int
    ) -> None:
        """``max_bytes`` bounds what is stored together with what is set aside."""
        self.store = store
        self.reading = OwnRows()
        self.token_bytes = token_bytes
        self._model_id = model_id
        self._max_bytes = max_bytes
        self._outside = 0

    def adopt(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`; the entry is used up.

        A sequence that had to make way computes everything anew.
        """
        purpose = purpose_of(sequence)
        if purpose is Purpose.RESUMED:
            return
        match, sequence.match = self.match(sequence), None
        taken = self.store.take(match, seq_id=sequence.seq_id, purpose=purpose)
        if taken is None:
            return
        row = taken.payload
        if surplus := len(taken.entry.tokens) - taken.matched:
            try:
                row_caches.trim(row, surplus)
            except Exception:
                # The entry is gone, and the request goes on cold: slower, never wrong.
                log.exception("an adopted prefix could not be trimmed by %d", surplus)
                self.store.adoption_failed(
                    taken,
                    RejectReason.LAYOUT_CONSTRAINTS,
                    seq_id=sequence.seq_id,
                    purpose=purpose,
                )
                return
        sequence.row = row
        sequence.prefilled = sequence.cached = taken.matched
        sequence.chain_hits = taken.entry.hits

    def match(self, sequence: Sequence) -> Match[Entry[Caches]]:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        return carried_match(self.store, self._model_id, sequence)

    def share(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""

    def reserved_bytes(self) -> int:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        return self.store.bytes

    def reserve(self, nbytes: int) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        self._outside = nbytes

    def unevictable_bytes(self, running: Iterable[Sequence], match: Match[Any]) -> int:
        """None: an entry in use has left the store."""
        return 0

    def evict_to(self, most: int, sequences: Iterable[Sequence]) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        while self.store.bytes > most and self.store.evict_for_memory():
            pass

    def on_prefill_progress(self, sequence: Sequence, row: Callable[[], Caches]) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""

    def should_donate(self, sequence: Sequence) -> bool:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        return worth_keeping(self.store, sequence)

    def donate(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        row, sequence.row = sequence.row, None
        tokens = sequence.kv_tokens()
        if not tokens or (row is None and self.should_donate(sequence)):
            reject_without_row(self.store, sequence)
            return
        nbytes = 0 if row is None else self._settled_bytes(row, sequence)
        self.store.insert(
            bucket_of(self._model_id, sequence),
            sequence.request.session,
            tokens,
            row if row is not None else [],
            nbytes,
            can_trim=row is not None and row_caches.can_trim(row),
            seq_id=sequence.seq_id,
            client=sequence.request.client,
            hits=sequence.chain_hits,
        )

    def _settled_bytes(self, row: Caches, sequence: Sequence) -> int:
        """What a row holds once it is evaluated; if that fails, the donation is refused."""
        try:
            mx.eval(row_caches.arrays(row))
        except Exception:
            self.store.reject(
                RejectReason.LAYOUT_CONSTRAINTS,
                session=sequence.request.session,
                seq_id=sequence.seq_id,
                context_len=sequence.num_kv_tokens,
            )
            raise
        nbytes = row_caches.nbytes(row)
        self.evict_to(max(0, self._max_bytes - self._outside - nbytes), ())
        return nbytes

    def settle(self, sequences: Iterable[Sequence]) -> None:
        """Arrays went with their entries, to MLX's own reserve."""
        release_freed()

    def pool_stats(self) -> PoolStats | None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        return None

    def check(self, sequences: Iterable[Sequence]) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        self.store.check()
