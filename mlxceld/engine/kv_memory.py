"""Keeping running sequences and stored prefixes within one budget of keys and values.

What runs goes before what is stored: entries are given up, the least recently used first, before
a sequence has to make way. All of it needs a pipeline break, since blocks may move.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mlxceld.engine.sequence import Phase
from mlxceld.kv import row_caches

if TYPE_CHECKING:
    from mlxceld.engine.admitter import Beginning
    from mlxceld.engine.batch import DecodeBatch
    from mlxceld.engine.prefix_cache import PrefixMemory
    from mlxceld.engine.sequence import Sequence

_STEPS = ((1 << 16, 256), (1 << 12, 64), (0, 16))
"""Budgets in tokens, and from each of them on the tokens by which rows grow at a time."""

_HEADROOM = 64
"""Tokens that each running row may grow by before one that made way for it comes back."""

_MOST_PADDING = 2.0
_SMALL_TAIL = 512
"""Tokens below which a row's tail is not worth moving, whatever its padding costs the others."""


def growth_step(limit: int, token_bytes: int) -> int:
    """Tokens by which rows grow within a budget of ``limit`` bytes.

    256, as mlx-lm's caches do, where that is little; else fewer, at the price of more copies.
    """
    tokens = limit // token_bytes if token_bytes else _STEPS[0][0]
    return next(step for least, step in _STEPS if tokens >= least)


class KvMemory:
    """The books of a budget of ``limit`` bytes: the store's, the batch's, and what is promised.

    A *tail* is what a sequence keeps outside the pool. A sequence in prefill is promised the tail
    that its prompt needs.
    """

    def __init__(
        self,
        limit: int,
        reuse: PrefixMemory,
        batch: DecodeBatch,
        in_flight: Callable[[], list[Sequence]],
    ) -> None:
        self.limit = limit
        self._reuse = reuse
        self._batch = batch
        self._in_flight = in_flight
        self.step = batch.step = growth_step(limit, reuse.token_bytes)

    def tails(self) -> int:
        """Bytes that running sequences hold outside the pool, prompts under way included."""
        rows = (s.row for s in self._in_flight() if s.row is not None)
        return self._batch.nbytes() + sum(row_caches.nbytes(row) for row in rows)

    def note_tails(self) -> None:
        """Let the pool know what is held and promised outside it; before anything is sealed."""
        self._reuse.reserve(self.tails() + self._promised())

    def over(self) -> int:
        """Bytes above the budget, promises not counted; below 0 if there is room."""
        return self._reuse.reserved_bytes() + self.tails() - self.limit

    def make_room(self, needed: int) -> bool:
        """Whether ``needed`` bytes more fit, after giving up stored entries as far as needed."""
        most = self.limit - self.tails() - self._promised() - needed
        if self._reuse.reserved_bytes() > most:
            self._reuse.evict_to(max(0, most), self._in_flight())
            self._batch.find_prefixes()
        return self._reuse.reserved_bytes() <= most

    def room_for_copy(self, sequence: Sequence) -> bool:
        """Whether a sequence may have what it reads from the pool in its own row."""
        copied = sequence.paged_tokens * self._reuse.token_bytes
        held = self._reuse.reserved_bytes() + self.tails() + self._promised()
        return held + copied <= self.limit

    def shortage(self, sequence: Sequence, beginning: Beginning) -> int:
        """Bytes that are missing for a sequence to be admitted; 0 if it may be.

        Whatever nobody reads and the sequence would not adopt is given up for it if need be. Where
        nothing else runs there is no shortage: more room than now will not come.
        """
        found = self._found(beginning)
        # Blocks are read whole; the rest of a match is copied into the tail.
        tail = self._with_room(
            len(sequence.known())
            - found // self._reuse.reading.block_size * self._reuse.reading.block_size
        )
        needed = tail * self._reuse.token_bytes
        running = [s for s in self._in_flight() if s.phase in (Phase.PREFILL, Phase.DECODE)]
        if sequence.resumed:
            # It made way because others grew, and they will: else it would do so again at once.
            needed += _HEADROOM * len(running) * self._reuse.token_bytes
        taken = self.tails() + self._promised() + needed
        if taken + self._reuse.reserved_bytes() <= self.limit or not running:
            return 0
        kept = self._reuse.unevictable_bytes(running, beginning.match)
        if taken + kept > self.limit:
            return taken + kept - self.limit
        return 0 if self.make_room(needed) else taken + self._reuse.reserved_bytes() - self.limit

    def _found(self, beginning: Beginning) -> int:
        """Tokens that a sequence will find stored, or that one under way will store for it.

        The latter only where the budget has room for them beside that one's own row.
        """
        held = self._reuse.reserved_bytes() + self.tails() + self._promised()
        common = beginning.common
        if common and held + common * self._reuse.token_bytes <= self.limit:
            return common
        return beginning.match.matched

    def too_padded(self, newcomers: list[Sequence]) -> Sequence | None:
        """The row that makes a batch with newcomers hold more padding than tokens, if one does."""
        rows = [*self._batch.rows, *newcomers]
        tails = [row.fed - row.paged_tokens for row in rows]
        longest = max(range(len(rows)), key=lambda i: tails[i])
        padded = len(rows) * tails[longest]
        wasteful = tails[longest] >= _SMALL_TAIL and padded > _MOST_PADDING * sum(tails)
        return rows[longest] if wasteful else None

    def _promised(self) -> int:
        """Bytes that the tails of sequences in prefill will still grow by."""
        total = 0
        for sequence in self._in_flight():
            if sequence.phase is Phase.PREFILL:
                follows = sequence.follows is not None
                before = sequence.shared_tokens if follows else sequence.paged_tokens
                wanted = self._with_room(len(sequence.known()) - before) * self._reuse.token_bytes
                held = 0 if sequence.row is None else row_caches.nbytes(sequence.row)
                total += max(0, wanted - held)
        return total

    def _with_room(self, tokens: int) -> int:
        """Tokens that a row of so many takes: caches grow by a step beyond what they hold."""
        return tokens + self.step
