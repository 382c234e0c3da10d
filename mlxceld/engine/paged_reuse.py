"""Reuse through the block pool: prefixes are stored once and read by all who share them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxceld.engine.pooled_rows import PooledRows
from mlxceld.engine.prefix_cache import PrefixMemory
from mlxceld.engine.reuse import (
    bucket_of,
    carried_match,
    offered_before,
    purpose_of,
    reject_without_row,
    worth_keeping,
)
from mlxceld.engine.reuse_plan import ReuseKind
from mlxceld.kv import paged_rows, row_caches
from mlxceld.prompt_cache.block_entry import AdoptedBlocks
from mlxceld.prompt_cache.match import Match, Purpose
from mlxceld.prompt_cache.rejects import RejectReason

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence
    from mlxceld.engine.shared_probe import SharingVerdict
    from mlxceld.kv.pool import BlockPool, PoolStats
    from mlxceld.kv.row_caches import Caches
    from mlxceld.prompt_cache.block_entry import BlockEntry
    from mlxceld.prompt_cache.block_store import BlockStore

log = logging.getLogger(__name__)


class PagedReuse(PrefixMemory):
    """For models whose caches are all pageable: any prefix of any entry can be adopted.

    The stored entry stays as it is. An adopter gets references to the whole blocks that it
    matches, and a copy of the matched rest of the last one. It reads the blocks where they lie
    together with those who share them, or, alone, from a copy of its own (``reading``). What
    it donates shares every whole block that is stored already.
    """

    kind = ReuseKind.BLOCKS.value
    store: BlockStore
    reading: PooledRows

    def __init__(
        self,
        store: BlockStore,
        pool: BlockPool,
        module: Any,
        model_id: str,
        sharing: SharingVerdict,
    ) -> None:
        self.store = store
        self.reading = PooledRows(store, pool, module, model_id, sharing)
        self.token_bytes = pool.bytes_per_block // pool.block_size
        self._pool = pool
        self._module = module
        self._model_id = model_id

    def adopt(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        purpose = purpose_of(sequence)
        match, sequence.match = self.match(sequence), None
        found = self.store.adopt(match, seq_id=sequence.seq_id, purpose=purpose)
        if found is None:
            return
        adopted = self._within_room(sequence, found, purpose)
        if adopted is None:
            return
        whole, rest = self._cut(adopted.matched)
        try:
            row = row_caches.new_row(self._module)
            if rest:
                layers = self._pool.read(adopted.blocks[whole:], rest)
                mx.eval(layers)
                row = paged_rows.row_of(self._module, layers, rest)
        except Exception:
            # The entry stays, and the request goes on cold: slower, never wrong.
            log.exception("a stored prefix of %d tokens could not be read", adopted.matched)
            self.store.adoption_failed(
                adopted,
                RejectReason.LAYOUT_CONSTRAINTS,
                seq_id=sequence.seq_id,
                purpose=purpose,
            )
            return
        self._pool.release(adopted.blocks[whole:])
        self.reading.give_table(sequence, adopted.blocks[:whole])
        sequence.row = row
        sequence.prefilled = adopted.matched
        if purpose is not Purpose.RESUMED:
            sequence.cached = adopted.matched

    def _within_room(
        self, sequence: Sequence, adopted: AdoptedBlocks, purpose: Purpose
    ) -> AdoptedBlocks | None:
        """A match without the rest of its last block where the budget cannot hold that copy.

        None where too little is left of it then.
        """
        size = self._pool.block_size
        whole, rest = self._cut(adopted.matched)
        if not rest or self._pool.room() >= rest * self.token_bytes:
            return adopted
        if whole * size < self.store.min_prefix:
            self.store.adoption_failed(
                adopted,
                RejectReason.BLOCK_BOUNDARY_FLOOR,
                seq_id=sequence.seq_id,
                purpose=purpose,
            )
            return None
        self._pool.release(adopted.blocks[whole:])
        return AdoptedBlocks(adopted.entry, whole * size, adopted.blocks[:whole])

    def _cut(self, tokens: int) -> tuple[int, int]:
        """How many whole blocks of a match are read from the pool, and the tokens to be copied."""
        if not self.reading.reads_together:
            return 0, tokens
        return divmod(tokens, self._pool.block_size)

    def match(self, sequence: Sequence) -> Match[BlockEntry]:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        return carried_match(self.store, self._model_id, sequence)

    @property
    def shares_early(self) -> bool:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        return self.store.enabled

    def share(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        if sequence.row is None:
            return
        tokens = sequence.kv_tokens()
        try:
            self._insert(sequence, sequence.row, tokens, record_refusal=False)
        except Exception:
            # Who would have adopted it computes it again: slower, never wrong.
            log.exception("a prefix of %d tokens could not be shared early", len(tokens))

    def reserved_bytes(self) -> int:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        return self._pool.stats().bytes_reserved

    def reserve(self, nbytes: int) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        self._pool.set_aside(nbytes)

    def unevictable_bytes(self, running: Iterable[Sequence], match: Match[BlockEntry]) -> int:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        blocks = set(self.store.blocks_of(match))
        if match.entry is not None:
            self.store.touch(match.entry)
        for sequence in running:
            blocks.update(sequence.block_table)
        return len(blocks) * self._pool.bytes_per_block

    def evict_to(self, most: int, sequences: Iterable[Sequence]) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        sequences = list(sequences)
        self._pool.give_back(spare=False)
        while self.reserved_bytes() > most:
            if self._pool.stats().bytes_in_use > most and self.store.evict_for_memory():
                continue
            self._compact(sequences)
            if self.reserved_bytes() > most and not self.store.evict_for_memory():
                return

    def on_prefill_progress(self, sequence: Sequence, row: Callable[[], Caches]) -> None:
        """What is stored serves at any token."""

    def should_donate(self, sequence: Sequence) -> bool:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        return worth_keeping(self.store, sequence)

    def donate(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        if offered_before(sequence):
            return
        tokens = sequence.kv_tokens()
        if not tokens or (sequence.row is None and self.should_donate(sequence)):
            reject_without_row(self.store, sequence)
            return
        self._insert(sequence, sequence.row or [], tokens)

    def _insert(
        self, sequence: Sequence, row: Caches, tokens: list[int], *, record_refusal: bool = True
    ) -> None:
        before = sequence.paged_tokens

        def seal(start: int, stop: int) -> list[int] | None:
            # Called only where the store wants the tokens, and then there is a row.
            rows = paged_rows.keys_and_values(row)
            return self._pool.seal(rows, start - before, stop - before)

        self.store.insert(
            bucket_of(self._model_id, sequence),
            sequence.request.session,
            tokens,
            seal,
            held=sequence.block_table,
            seq_id=sequence.seq_id,
            client=sequence.request.client,
            # Only the early donation of a prompt goes without a record of its refusal.
            origin="completion" if record_refusal else "prompt",
            record_refusal=record_refusal,
        )

    def settle(self, sequences: Iterable[Sequence]) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        self._compact(list(sequences))

    def _compact(self, sequences: Seq[Sequence]) -> None:
        """Move blocks together, and free the slabs that hold none then."""
        moved = self._pool.compact()
        if moved:
            self.store.remap(moved)
            for sequence in sequences:
                sequence.block_table = [moved.get(block, block) for block in sequence.block_table]
        self._pool.give_back(spare=False)

    def pool_stats(self) -> PoolStats | None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        return self._pool.stats()

    def check(self, sequences: Iterable[Sequence]) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        self.store.check()
        self._pool.check([*self.store.tables(), *(s.block_table for s in sequences)])
