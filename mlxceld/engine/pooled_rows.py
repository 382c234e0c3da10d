"""Rows that read the beginning of their keys and values in the blocks of the pool."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

from mlxceld.engine.reuse import bucket_of
from mlxceld.engine.row_reading import RowReading
from mlxceld.kv import paged_rows
from mlxceld.kv.shared_prefix import SharedPrefix

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence
    from mlxceld.engine.shared_probe import SharingVerdict
    from mlxceld.kv.pool import BlockPool
    from mlxceld.kv.slabs import LayerShape
    from mlxceld.prompt_cache.block_store import BlockStore

log = logging.getLogger(__name__)


class PooledRows(RowReading):
    """A row reads the blocks that its table names, and has what comes after them in its caches."""

    def __init__(
        self,
        store: BlockStore,
        pool: BlockPool,
        module: Any,
        model_id: str,
        sharing: SharingVerdict,
    ) -> None:
        self.sharing: SharingVerdict | None = sharing
        self._store = store
        self._pool = pool
        self._module = module
        self._model_id = model_id

    @property
    def reads_together(self) -> bool:
        """See :class:`~mlxceld.engine.row_reading.RowReading`."""
        return self.sharing is not None and self.sharing.works

    @property
    def gathers(self) -> bool:
        """See :class:`~mlxceld.engine.row_reading.RowReading`."""
        return self.sharing is not None and self.sharing.gathers

    def fall_back(self, reason: str) -> None:
        """See :class:`~mlxceld.engine.row_reading.RowReading`."""
        before = self.sharing
        if before is not None:
            now = self.sharing = before.next_best(reason)
            log.warning("shared prefixes: %s instead of %s: %s", now.mode, before.mode, reason)

    def block_shapes(self) -> tuple[Seq[LayerShape], int] | None:
        """See :class:`~mlxceld.engine.row_reading.RowReading`."""
        return self._pool.shapes, self._pool.block_size

    def page_in(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.row_reading.RowReading`."""
        if not sequence.block_table or sequence.row is None:
            return
        layers = self._pool.read(sequence.block_table, sequence.paged_tokens)
        row = paged_rows.joined(self._module, layers, sequence.row)
        self.release(sequence)
        sequence.row = row

    def page_out(self, sequence: Sequence, tokens_at_most: int | None = None) -> None:
        """See :class:`~mlxceld.engine.row_reading.RowReading`."""
        row, tokens = sequence.row, sequence.kv_tokens()[:tokens_at_most]
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
        self.give_table(sequence, blocks)
        sequence.row = tail

    def _stored_or_held(self, sequence: Sequence, tokens: list[int]) -> list[int]:
        """The most whole blocks that hold a sequence's first tokens already."""
        stored = self._store.whole_blocks(bucket_of(self._model_id, sequence), tokens)
        return list(stored if len(stored) > len(sequence.block_table) else sequence.block_table)

    def release(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.row_reading.RowReading`."""
        blocks, sequence.block_table, sequence.paged_tokens = sequence.block_table, [], 0
        self._pool.release(blocks)

    @property
    def block_size(self) -> int:
        """See :class:`~mlxceld.engine.row_reading.RowReading`."""
        return self._pool.block_size if self.reads_together else sys.maxsize

    def prefix_of(self, sequences: Seq[Sequence]) -> SharedPrefix | None:
        """See :class:`~mlxceld.engine.row_reading.RowReading`."""
        tables = [sequence.block_table for sequence in sequences]
        return SharedPrefix(self._pool, tables) if any(tables) else None

    def give_table(self, sequence: Sequence, blocks: Seq[int]) -> None:
        """Let a sequence read whole blocks; their references are its own from now on."""
        sequence.block_table = list(blocks)
        sequence.paged_tokens = len(blocks) * self._pool.block_size
