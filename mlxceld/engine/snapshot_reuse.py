"""Reuse through snapshots: models whose caches are not all pageable resume where a state was kept.

Which points are worth keeping is in the request: the end of what all conversations share, and the
end of the history. Prefill ends a chunk exactly there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from mlxceld.engine import sharing
from mlxceld.engine.prefix_cache import PrefixMemory
from mlxceld.engine.request import RAW_PROMPT_SIGNATURE
from mlxceld.engine.reuse import (
    bucket_of,
    carried_match,
    offered_before,
    purpose_of,
    reject_without_row,
    worth_keeping,
)
from mlxceld.engine.reuse_plan import ReuseKind
from mlxceld.engine.row_reading import OwnRows
from mlxceld.engine.sequence import Phase
from mlxceld.kv import paged_rows, snapshots
from mlxceld.kv.memory import release_freed
from mlxceld.kv.snapshots import RowState
from mlxceld.models.boundaries import Boundary
from mlxceld.models.caches.state import copied
from mlxceld.prompt_cache.match import Match, Purpose
from mlxceld.prompt_cache.rejects import RejectReason
from mlxceld.prompt_cache.snapshot_entry import Origin

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence
    from mlxceld.kv.pool import BlockPool, PoolStats
    from mlxceld.kv.row_caches import Caches
    from mlxceld.kv.slabs import KeysAndValues
    from mlxceld.prompt_cache.snapshot_entry import SnapshotEntry
    from mlxceld.prompt_cache.snapshot_store import SnapshotStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Handed:
    """What a sequence has just computed for those who follow it; good until it goes on."""

    leader: Sequence
    tokens: list[int]
    state: RowState
    layers: list[KeysAndValues]

    @property
    def current(self) -> bool:
        """Whether the leader still stands where this was taken."""
        there = self.leader.prefilled == len(self.tokens)
        return there and self.leader.phase is Phase.PREFILL


class SnapshotReuse(PrefixMemory):
    """For models with recurrent, windowed or composite caches, whose past cannot be cut.

    A stored state stays as it is: who resumes from it gets handles of his own, and copies of the
    keys and values that lie in ``pool``, which is None where no layer is pageable.
    """

    kind = ReuseKind.SNAPSHOTS.value
    store: SnapshotStore[RowState]

    def __init__(
        self,
        store: SnapshotStore[RowState],
        pool: BlockPool | None,
        module: Any,
        model_id: str,
        *,
        token_bytes: int,
        max_bytes: int,
    ) -> None:
        """``max_bytes`` bounds what is stored together with what is set aside."""
        self.reading = OwnRows()
        self.token_bytes = token_bytes
        self._max_bytes = max_bytes
        self.store = store
        self._pool = pool
        self._module = module
        self._model_id = model_id
        self._budget = store.budget
        self._handed: list[_Handed] = []

    def adopt(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        sequence.chunk_boundaries = tuple(point.tokens for point in self._points(sequence))
        purpose = purpose_of(sequence)
        first_time = purpose is not Purpose.RESUMED
        match, sequence.match = self.match(sequence), None
        handed = self._handed_to(sequence, sequence.known())
        if handed is not None and match.matched < len(handed.tokens):
            layers = [(keys[...], values[...]) for keys, values in handed.layers]
            self._resume(sequence, handed.state, layers, count=first_time)
            self.store.handed_over(
                match.query,
                seq_id=sequence.seq_id,
                matched=handed.state.tokens,
                nbytes=handed.state.nbytes,
                purpose=purpose,
            )
            return
        entry = self.store.adopt(match, seq_id=sequence.seq_id, purpose=purpose)
        if entry is None:
            return
        try:
            layers = self._read(entry.table, entry.state.tokens)
            self._resume(sequence, entry.state, layers, count=first_time)
        except Exception:
            # The entry stays, and the request goes on cold: slower, never wrong.
            log.exception("a snapshot of %d tokens could not be read", len(entry.tokens))
            sequence.row, sequence.prefilled = None, 0
            if first_time:
                sequence.cached = 0
            self.store.adoption_failed(
                entry,
                RejectReason.LAYOUT_CONSTRAINTS,
                seq_id=sequence.seq_id,
                purpose=purpose,
            )
            return
        if self._pool is not None:
            self._pool.release(entry.table)

    def match(self, sequence: Sequence) -> Match[SnapshotEntry[RowState]]:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        return carried_match(self.store, self._model_id, sequence)

    @property
    def shares_early(self) -> bool:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        return self.store.enabled

    def share(self, sequence: Sequence) -> None:
        """Hand the state over to those who wait at this very token.

        Nothing is stored: where prompts happen to part is no place that later ones come to.
        """
        self._forget()
        at, row = sequence.prefilled, sequence.row
        if row is None or not any(f.shared_tokens == at for f in sharing.ready(sequence)):
            return
        try:
            state = snapshots.capture(row, at)
            layers = [
                (copied(leaf.keys[:, :, :at]), copied(leaf.values[:, :, :at]))
                for leaf in snapshots.pageable(row)
            ]
            mx.eval(layers)
        except Exception:
            log.exception("a state after %d tokens could not be shared", at)
            return
        self._handed.append(_Handed(sequence, sequence.prompt[:at], state, layers))

    def reserved_bytes(self) -> int:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        return self.store.bytes

    def reserve(self, nbytes: int) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        self.store.ceiling = max(0, self._max_bytes - nbytes)

    def unevictable_bytes(
        self, running: Iterable[Sequence], match: Match[SnapshotEntry[RowState]]
    ) -> int:
        """What would be adopted: nobody reads what is stored for long."""
        entry = match.entry
        if entry is None:
            return 0
        self.store.touch(entry)
        return self.store.size(entry)

    def evict_to(self, most: int, sequences: Iterable[Sequence]) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        while self.store.bytes > most and self.store.evict_for_memory():
            pass
        self.settle(sequences)

    def on_prefill_progress(self, sequence: Sequence, row: Callable[[], Caches]) -> None:
        """Keep the state where it is worth it."""
        self._forget()
        at = sequence.prefilled
        for point in self._points(sequence):
            if point.tokens != at:
                continue
            tokens = sequence.prompt[:at]
            origin = Origin(point.kind)
            if origin is Origin.HEAD and self.store.has_head(
                bucket_of(self._model_id, sequence), tokens
            ):
                continue
            try:
                self._insert(sequence, row(), tokens, origin)
            except Exception:
                # Later requests compute it again: slower, never wrong.
                log.exception("the state after %d tokens could not be kept", at)

    def should_donate(self, sequence: Sequence) -> bool:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`."""
        return worth_keeping(self.store, sequence) and _may_be_kept(sequence)

    def donate(self, sequence: Sequence) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.PrefixCache`.

        What the next turn will not begin with is not stored, and that is no refusal.
        """
        self._forget()
        row, sequence.row = sequence.row, None
        if offered_before(sequence):
            return
        tokens = sequence.kv_tokens()
        if not tokens:
            reject_without_row(self.store, sequence)
            return
        if not worth_keeping(self.store, sequence):
            short = self.store.enabled
            self.store.reject(
                RejectReason.PREFIX_TOO_SHORT if short else RejectReason.DISABLED,
                session=sequence.request.session,
                seq_id=sequence.seq_id,
                context_len=len(tokens),
            )
            return
        if sequence.num_scheduled_tokens and _is_kept(sequence, tokens):
            if row is None:
                reject_without_row(self.store, sequence)
                return
            self._insert(sequence, row, tokens, Origin.COMPLETION)

    def settle(self, sequences: Iterable[Sequence]) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        self._forget()
        if self._pool is None:
            release_freed()
            return
        if self.store.budget is not self._budget:
            self._budget = self.store.budget
            self._pool.resize(self._budget.snapshot_capacity_bytes)
        stats = self._pool.stats()
        if stats.blocks_free * 2 > stats.blocks_allocated and stats.blocks_live:
            self.store.remap(self._pool.compact())
        self._pool.give_back()
        release_freed()

    def pool_stats(self) -> PoolStats | None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        return None if self._pool is None else self._pool.stats()

    def check(self, sequences: Iterable[Sequence]) -> None:
        """See :class:`~mlxceld.engine.prefix_cache.StoredMemory`."""
        self.store.check()
        if self._pool is not None:
            self._pool.check(self.store.tables())
        for entry in self.store.entries():
            held = entry.state.nbytes
            assert held == entry.state_bytes, f"{held} bytes held, {entry.state_bytes} booked"

    def _points(self, sequence: Sequence) -> list[Boundary]:
        """Where the states of a prompt are to be kept, none beyond its last token but one."""
        if not self.store.enabled:
            return []
        last, points = len(sequence.prompt) - 1, sequence.request.boundaries
        if not points and sequence.request.template_signature == RAW_PROMPT_SIGNATURE:
            points = (Boundary(last, "boundary"),)
        points = tuple(Boundary(min(point.tokens, last), point.kind) for point in points)
        return [point for point in points if point.tokens >= self.store.min_prefix]

    def _insert(
        self, sequence: Sequence, row: Caches, tokens: list[int], origin: Origin
    ) -> RejectReason | None:
        bucket, request = bucket_of(self._model_id, sequence), sequence.request

        def refuse(reason: RejectReason) -> None:
            self.store.reject(
                reason,
                session=request.session,
                seq_id=sequence.seq_id,
                context_len=len(tokens),
            )

        try:
            state = snapshots.capture(row, len(tokens))
        except Exception:
            refuse(RejectReason.LAYOUT_CONSTRAINTS)
            raise

        def seal(start: int, stop: int) -> list[int] | None:
            if self._pool is None:
                return []
            layers = paged_rows.keys_and_values(list(snapshots.pageable(row)))
            return self._pool.seal(layers, start, stop)

        # What was asked to be kept belongs to no session, and outdates no session's heads.
        kept_for_all = origin is Origin.HEAD and request.background
        return self.store.insert(
            bucket,
            None if kept_for_all else request.session,
            tokens,
            origin,
            state,
            state.nbytes,
            seal,
            seq_id=sequence.seq_id,
            client=request.client,
        )

    def _read(self, table: tuple[int, ...], tokens: int) -> list[KeysAndValues]:
        if self._pool is None:
            return []
        layers = self._pool.read(table, tokens)
        mx.eval(layers)
        return layers

    def _resume(
        self, sequence: Sequence, state: RowState, layers: list[KeysAndValues], *, count: bool
    ) -> None:
        """Let a sequence go on from a state; what it takes the first time counts as cached."""
        sequence.row = snapshots.restore(self._module, state, layers)
        sequence.prefilled = state.tokens
        if count:
            sequence.cached = state.tokens

    def _handed_to(self, sequence: Sequence, tokens: list[int]) -> _Handed | None:
        """The longest state that a leader stands at and this sequence begins with."""
        self._forget()
        signature = sequence.request.template_signature
        fitting = [
            handed
            for handed in self._handed
            if handed.leader.request.template_signature == signature
            and len(handed.tokens) < len(tokens)
            and handed.tokens == tokens[: len(handed.tokens)]
        ]
        return max(fitting, key=lambda handed: len(handed.tokens), default=None)

    def _forget(self) -> None:
        """Drop states whose leader has gone on or ended."""
        self._handed = [handed for handed in self._handed if handed.current]


def _may_be_kept(sequence: Sequence) -> bool:
    """Whether a completion can be of use, as far as can be told before it is complete."""
    return sequence.continuation is not None or not sequence.request.boundaries


def _is_kept(sequence: Sequence, tokens: list[int]) -> bool:
    """Whether the next turn's prompt will begin with these tokens.

    Where nobody can tell, a prompt that has boundaries of its own does without.
    """
    if not sequence.request.boundaries:
        return True
    continuation = sequence.continuation
    return continuation is not None and continuation.keeps(tokens) >= len(tokens)
