"""Reuse through the block pool: prefixes are stored once and read by all who share them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

import mlx.core as mx

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
from mlxceld.kv.shared_prefix import SharedPrefix
from mlxceld.prompt_cache.block_entry import AdoptedBlocks
from mlxceld.prompt_cache.match import Match, Purpose
from mlxceld.prompt_cache.rejects import RejectReason

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence
    from mlxceld.engine.shared_probe import SharingVerdict
    from mlxceld.kv.pool import BlockPool, PoolStats
    from mlxceld.kv.row_caches import Caches
    from mlxceld.kv.slabs import LayerShape
    from mlxceld.prompt_cache.block_entry import BlockEntry, ChainStats
    from mlxceld.prompt_cache.block_store import BlockStore

log = logging.getLogger(__name__)


class PagedReuse:
    """For models whose caches are all pageable: any prefix of any entry can be adopted.

    The stored entry stays as it is. An adopter gets references to the whole blocks that it
    matches, and a copy of the matched rest of the last one. It reads the blocks where they lie
    together with those who share them, or, alone, from a copy of its own (:meth:`page_in`). What
    it donates shares every whole block that is stored already.
    """

    kind = ReuseKind.BLOCKS.value

    def __init__(
        self,
        store: BlockStore,
        pool: BlockPool,
        module: Any,
        model_id: str,
        sharing: SharingVerdict,
    ) -> None:
        self.store = store
        self.sharing: SharingVerdict | None = sharing
        self._pool = pool
        self._module = module
        self._model_id = model_id

    @property
    def reads_together(self) -> bool:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return self.sharing is not None and self.sharing.works

    @property
    def gathers(self) -> bool:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return self.sharing is not None and self.sharing.gathers

    def fall_back(self, reason: str) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        before = self.sharing
        if before is not None:
            now = self.sharing = before.next_best(reason)
            log.warning("shared prefixes: %s instead of %s: %s", now.mode, before.mode, reason)

    def block_shapes(self) -> tuple[Seq[LayerShape], int] | None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return self._pool.shapes, self._pool.block_size

    def adopt(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
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
        self._give_table(sequence, adopted.blocks[:whole])
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
        if not self.reads_together:
            return 0, tokens
        return divmod(tokens, self._pool.block_size)

    @property
    def version(self) -> int:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return self.store.version

    def match(self, sequence: Sequence) -> Match[BlockEntry]:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return carried_match(self.store, self._model_id, sequence)

    @property
    def shares_early(self) -> bool:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return self.store.enabled

    def share(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        if sequence.row is None:
            return
        tokens = sequence.fed_tokens()
        try:
            self._insert(sequence, sequence.row, tokens, record_refusal=False)
        except Exception:
            # Who would have adopted it computes it again: slower, never wrong.
            log.exception("a prefix of %d tokens could not be shared early", len(tokens))

    def page_in(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        if not sequence.table or sequence.row is None:
            return
        layers = self._pool.read(sequence.table, sequence.paged_tokens)
        row = paged_rows.joined(self._module, layers, sequence.row)
        self.release(sequence)
        sequence.row = row

    def page_out(self, sequence: Sequence, tokens_at_most: int | None = None) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        row, tokens = sequence.row, sequence.fed_tokens()[:tokens_at_most]
        if row is None:
            return
        blocks = self._stored_or_held(sequence, tokens)
        self._pool.retain(blocks)
        size, before = self._pool.block_size, sequence.paged_tokens
        whole = len(tokens) // size
        try:
            if len(blocks) < whole:
                first, last = len(blocks) * size - before, whole * size - before
                blocks += self._pool.seal(paged_rows.keys_and_values(row), first, last) or []
            tail = paged_rows.tail_of(self._module, row, len(blocks) * size - before)
        except Exception:
            # It keeps what it has: more memory, never wrong.
            log.exception("%d tokens could not be put into the pool", len(tokens))
            self._pool.release(blocks)
            return
        self.release(sequence)
        self._give_table(sequence, blocks)
        sequence.row = tail

    def _stored_or_held(self, sequence: Sequence, tokens: list[int]) -> list[int]:
        """The most whole blocks that hold a sequence's first tokens already."""
        stored = self.store.whole_blocks(bucket_of(self._model_id, sequence), tokens)
        return list(stored if len(stored) > len(sequence.table) else sequence.table)

    def release(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        blocks, sequence.table, sequence.paged_tokens = sequence.table, [], 0
        self._pool.release(blocks)

    @property
    def block_size(self) -> int:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return self._pool.block_size if self.reads_together else sys.maxsize

    @property
    def token_bytes(self) -> int:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return self._pool.bytes_per_block // self._pool.block_size

    def reserved(self) -> int:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return self._pool.stats().bytes_reserved

    def set_aside(self, nbytes: int) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        self._pool.set_aside(nbytes)

    def pinned(self, running: Iterable[Sequence], match: Match[BlockEntry]) -> int:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        blocks = set(self.store.blocks_of(match))
        if match.entry is not None:
            self.store.touch(match.entry)
        for sequence in running:
            blocks.update(sequence.table)
        return len(blocks) * self._pool.bytes_per_block

    def free_up(self, most: int, sequences: Iterable[Sequence]) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        sequences = list(sequences)
        self._pool.give_back(spare=False)
        while self.reserved() > most:
            if self._pool.stats().bytes_in_use > most and self.store.evict_for_memory():
                continue
            self._compact(sequences)
            if self.reserved() > most and not self.store.evict_for_memory():
                return

    def prefix_of(self, sequences: Seq[Sequence]) -> SharedPrefix | None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        tables = [sequence.table for sequence in sequences]
        return SharedPrefix(self._pool, tables) if any(tables) else None

    def reached(self, sequence: Sequence, row: Callable[[], Caches]) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`; what is stored serves at any token."""

    def wants(self, sequence: Sequence) -> bool:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return worth_keeping(self.store, sequence)

    def donate(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        if offered_before(sequence):
            return
        tokens = sequence.fed_tokens()
        if not tokens or (sequence.row is None and self.wants(sequence)):
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
            held=sequence.table,
            seq_id=sequence.seq_id,
            client=sequence.request.client,
            # Only the early donation of a prompt goes without a record of its refusal.
            origin="completion" if record_refusal else "prompt",
            record_refusal=record_refusal,
        )

    def _give_table(self, sequence: Sequence, blocks: Seq[int]) -> None:
        sequence.table = list(blocks)
        sequence.paged_tokens = len(blocks) * self._pool.block_size

    def settle(self, sequences: Iterable[Sequence]) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        self._compact(list(sequences))

    def _compact(self, sequences: Seq[Sequence]) -> None:
        """Move blocks together, and free the slabs that hold none then."""
        moved = self._pool.compact()
        if moved:
            self.store.remap(moved)
            for sequence in sequences:
                sequence.table = [moved.get(block, block) for block in sequence.table]
        self._pool.give_back(spare=False)

    def pool_stats(self) -> PoolStats | None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return self._pool.stats()

    def chain_stats(self) -> ChainStats | None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return self.store.chain_stats()

    def check(self, sequences: Iterable[Sequence]) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        self.store.check()
        self._pool.check([*self.store.tables(), *(s.table for s in sequences)])
