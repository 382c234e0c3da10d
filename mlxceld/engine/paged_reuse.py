"""Reuse through the block pool: prefixes are stored once and read by all who share them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxceld.engine.reuse import bucket_of, reject_without_row, worth_keeping
from mlxceld.kv import paged_rows
from mlxceld.prompt_cache.rejects import RejectReason

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence
    from mlxceld.kv.pool import BlockPool, PoolStats
    from mlxceld.kv.row_caches import Caches
    from mlxceld.prompt_cache.block_entry import ChainStats
    from mlxceld.prompt_cache.block_store import BlockStore

log = logging.getLogger(__name__)


class PagedReuse:
    """For models whose caches are all pageable: any prefix of any entry can be adopted.

    The stored entry stays as it is. An adopter's keys and values are copied out of the pool into
    its own row, to the token; what it donates shares every whole block that is stored already.
    """

    def __init__(self, store: BlockStore, pool: BlockPool, module: Any, model_id: str) -> None:
        self.store = store
        self._pool = pool
        self._module = module
        self._model_id = model_id
        self._budget = store.budget

    def adopt(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        match = self.store.adopt(
            bucket_of(self._model_id, sequence),
            sequence.request.session,
            sequence.prompt,
            len(sequence.prompt) - 1,
            seq_id=sequence.seq_id,
        )
        if match is None:
            return
        try:
            layers = self._pool.read(match.blocks, match.matched)
            mx.eval(layers)
            row = paged_rows.row_of(self._module, layers, match.matched)
        except Exception:
            # The entry stays, and the request goes on cold: slower, never wrong.
            log.exception("a stored prefix of %d tokens could not be read", match.matched)
            self.store.adoption_failed(
                match, RejectReason.LAYOUT_CONSTRAINTS, seq_id=sequence.seq_id
            )
            return
        self._pool.release(match.blocks)
        sequence.row = row
        sequence.prefilled = sequence.cached = match.matched

    def expected(self, sequence: Sequence) -> int | None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        if not self.store.enabled:
            return None
        match = self.store.find(
            bucket_of(self._model_id, sequence),
            sequence.request.session,
            sequence.prompt,
            len(sequence.prompt) - 1,
        )
        return 0 if match is None else match.matched

    def share(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        if sequence.row is None:
            return
        tokens = sequence.prompt[: sequence.prefilled]
        try:
            self._insert(sequence, sequence.row, tokens, record_refusal=False)
        except Exception:
            # Who would have adopted it computes it again: slower, never wrong.
            log.exception("a prefix of %d tokens could not be shared early", len(tokens))

    def wants(self, sequence: Sequence) -> bool:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return worth_keeping(self.store, sequence)

    def donate(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        row, sequence.row = sequence.row, None
        tokens = sequence.fed_tokens()
        if not tokens:
            return
        if row is None and self.wants(sequence):
            reject_without_row(self.store, sequence)
            return
        self._insert(sequence, row or [], tokens)

    def _insert(
        self, sequence: Sequence, row: Caches, tokens: list[int], *, record_refusal: bool = True
    ) -> None:
        def seal(start: int, stop: int) -> list[int] | None:
            # Called only where the store wants the tokens, and then there is a row.
            return self._pool.seal(paged_rows.keys_and_values(row), start, stop)

        self.store.insert(
            bucket_of(self._model_id, sequence),
            sequence.request.session,
            tokens,
            seal,
            seq_id=sequence.seq_id,
            client=sequence.request.client,
            # Only the early donation of a prompt goes without a record of its refusal.
            origin="completion" if record_refusal else "prompt",
            record_refusal=record_refusal,
        )

    def settle(self) -> None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        if self.store.budget is not self._budget:
            self._budget = self.store.budget
            self._pool.resize(self._budget.capacity_bytes)
        stats = self._pool.stats()
        if stats.blocks_free * 2 > stats.blocks_allocated and stats.blocks_live:
            self.store.remap(self._pool.compact())
        self._pool.give_back()

    def pool_stats(self) -> PoolStats | None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return self._pool.stats()

    def chain_stats(self) -> ChainStats | None:
        """See :class:`~mlxceld.engine.reuse.PromptReuse`."""
        return self.store.chain_stats()

    def check(self) -> None:
        """Raise AssertionError if store and pool do not agree; between adoptions only."""
        self.store.check()
        self._pool.check(self.store.tables())
