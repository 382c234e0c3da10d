"""Memory of running rows, within one budget of keys and values for what runs and what is stored.

What runs goes before what is stored: entries are given up, the least recently used first, before
a sequence is preempted. All of it needs a pipeline break, since blocks may move.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mlxceld.engine import grouping
from mlxceld.engine.sequence import Phase
from mlxceld.kv import row_caches

if TYPE_CHECKING:
    from mlxceld.engine.admitter import Beginning
    from mlxceld.engine.batch import DecodeBatch
    from mlxceld.engine.prefix_cache import PrefixMemory
    from mlxceld.engine.recorder import Recorder
    from mlxceld.engine.scheduler import Scheduler
    from mlxceld.engine.sequence import Sequence

_STEPS = ((1 << 16, 256), (1 << 12, 64), (0, 16))
"""Budgets in tokens, and from each of them on the tokens by which rows grow at a time."""

_HEADROOM = 64
"""Tokens that each running row may grow by before one that was preempted for it comes back."""

_MOST_PADDING = 2.0
_SMALL_TAIL = 512
"""Tokens below which a row's tail is not worth moving, whatever its padding costs the others."""


def growth_step(limit: int, token_bytes: int) -> int:
    """Tokens by which rows grow within a budget of ``limit`` bytes.

    256, as mlx-lm's caches do, where that is little; else fewer, at the price of more copies.
    """
    tokens = limit // token_bytes if token_bytes else _STEPS[0][0]
    return next(step for least, step in _STEPS if tokens >= least)


class RowAllocator:
    """Gives running rows their part of ``limit`` bytes, and takes it back.

    A *tail* is what a sequence keeps outside the pool. A sequence in prefill is promised the tail
    that its prompt needs. ``cache`` tells what is stored and read, and gives it up when asked.
    """

    def __init__(
        self,
        limit: int,
        cache: PrefixMemory,
        batch: DecodeBatch,
        scheduler: Scheduler,
        recorder: Recorder,
        in_flight: Callable[[], list[Sequence]],
    ) -> None:
        self.limit = limit
        self._cache = cache
        self._batch = batch
        self._scheduler = scheduler
        self._recorder = recorder
        self._in_flight = in_flight
        self.step = batch.step = growth_step(limit, cache.token_bytes)

    # The books.

    def held_bytes(self) -> int:
        """What running sequences hold outside the pool, prompts under way included."""
        rows = (s.row for s in self._in_flight() if s.row is not None)
        return self._batch.nbytes() + sum(row_caches.nbytes(row) for row in rows)

    def note_held(self) -> None:
        """Let the pool know what is held and promised outside it; before anything is sealed."""
        self._cache.reserve(self._taken())

    # Allocating and freeing.

    def can_allocate(self, nbytes: int) -> bool:
        """Whether so many bytes more fit beside all that is held, promised and stored."""
        return self._taken() + self._cache.reserved_bytes() + nbytes <= self.limit

    def allocate(self, nbytes: int) -> bool:
        """Whether so many bytes more fit, after giving up stored entries as far as needed."""
        most = self.limit - self._taken() - nbytes
        if self._cache.reserved_bytes() > most:
            self._cache.evict_to(max(0, most), self._in_flight())
            self._batch.find_prefixes()
        return self._cache.reserved_bytes() <= most

    def shortage(self, sequence: Sequence, beginning: Beginning) -> int:
        """Allocate what a sequence needs to be admitted: the bytes that are missing, 0 if none.

        Whatever nobody reads and the sequence would not adopt is given up for it if need be, and
        nothing where that is not enough. Where nothing else runs there is no shortage: more room
        than now will not come.
        """
        needed = self._needed_bytes(sequence, beginning)
        running = self._running()
        if not running or self.can_allocate(needed):
            return 0
        taken = self._taken() + needed
        kept = self._cache.unevictable_bytes(running, beginning.match)
        if taken + kept > self.limit:
            return taken + kept - self.limit
        if self.allocate(needed):
            return 0
        return taken + self._cache.reserved_bytes() - self.limit

    def free(self, sequence: Sequence) -> None:
        """Take back what a sequence holds, in the pool and outside; it must have left the batch."""
        self._cache.reading.release(sequence)
        sequence.row = None

    # Preempting.

    def can_preempt(self) -> bool:
        """Whether there is one to preempt beside another that goes on."""
        return len(self._running()) > 1

    def preempt(self) -> None:
        """Send the youngest sequence back to the line; one has to be there that goes on.

        It stores what it has computed, as far as that fits, and goes on from there when its turn
        comes; its answer is the same.
        """
        youngest = max(self._running(), key=lambda sequence: sequence.seq_id)
        self._batch.leave([youngest], self._cache.should_donate)
        self._scheduler.remove(youngest)
        self.note_held()
        self._cache.share(youngest)
        self.free(youngest)
        youngest.preempt()
        youngest.note = "made way for older requests, waits for memory"
        self._scheduler.add_back(youngest)
        self._recorder.preemptions += 1

    # When the batch changes.

    def before_decode(self, pause: Callable[[], None]) -> None:
        """Before the rows grow: entries go first, then the youngest sequences are preempted.

        ``pause`` breaks the pipeline, which is done only where there is not enough room.
        """
        growth = self._batch.growth()
        if not growth or self._over() + growth <= 0:
            return
        self._batch.grow_less()
        if self._over() + self._batch.growth() <= 0:
            return
        pause()
        while (growth := self._batch.growth()) and not self.allocate(growth):
            if not self.can_preempt():
                return
            self.preempt()

    def after_prefill(self) -> None:
        """In case that prompts took more than was promised them."""
        while self._over() > 0 and not self.allocate(0):
            if not self.can_preempt():
                return
            self.preempt()

    def before_joining(self, newcomers: list[Sequence], *, merged: bool) -> None:
        """Move rows into the pool before the others are padded to their length.

        Those of which the newcomers read a part there, too, and those that are long by themselves.
        """
        for row, common in grouping.latecomers(self._batch.rows, newcomers):
            self._page_out(row, newcomers, common)
        while (longest := self._too_padded(newcomers)) is not None:
            before = longest.paged_tokens
            if not (merged and longest in newcomers):
                self._page_out(longest, newcomers)
            if longest.paged_tokens == before:
                return

    def _page_out(
        self, row: Sequence, newcomers: list[Sequence], tokens_at_most: int | None = None
    ) -> None:
        inside = row not in newcomers
        if inside:
            self._batch.leave([row], lambda _: True)
        self._cache.reading.page_out(row, tokens_at_most)
        if inside:
            self._batch.join([row], None)

    def _too_padded(self, newcomers: list[Sequence]) -> Sequence | None:
        """The row that makes a batch with newcomers hold more padding than tokens, if one does."""
        rows = [*self._batch.rows, *newcomers]
        tails = [row.num_kv_tokens - row.paged_tokens for row in rows]
        longest = max(range(len(rows)), key=lambda i: tails[i])
        padded = len(rows) * tails[longest]
        wasteful = tails[longest] >= _SMALL_TAIL and padded > _MOST_PADDING * sum(tails)
        return rows[longest] if wasteful else None

    def _running(self) -> list[Sequence]:
        return [s for s in self._in_flight() if s.phase in (Phase.PREFILL, Phase.DECODE)]

    def _over(self) -> int:
        """Bytes above the budget, promises not counted; below 0 if there is room."""
        return self._cache.reserved_bytes() + self.held_bytes() - self.limit

    def _taken(self) -> int:
        """Bytes that are held or promised outside the pool."""
        return self.held_bytes() + self._promised_bytes()

    def _needed_bytes(self, sequence: Sequence, beginning: Beginning) -> int:
        """What the tail of a sequence that begins so will take."""
        found, block_size = self._found(beginning), self._cache.reading.block_size
        # Blocks are read whole; the rest of a match is copied into the tail.
        tail = self._with_room(len(sequence.known()) - found // block_size * block_size)
        if sequence.resumed:
            # It was preempted because others grew, and they will: else it would be again.
            tail += _HEADROOM * len(self._running())
        return tail * self._cache.token_bytes

    def _found(self, beginning: Beginning) -> int:
        """Tokens that a sequence will find stored, or that one under way will store for it.

        The latter only where the budget has room for them beside that one's own row.
        """
        common = beginning.common
        if common and self.can_allocate(common * self._cache.token_bytes):
            return common
        return beginning.match.matched

    def _promised_bytes(self) -> int:
        """What the tails of sequences in prefill will still grow by."""
        total = 0
        for sequence in self._in_flight():
            if sequence.phase is Phase.PREFILL:
                follows = sequence.follows is not None
                before = sequence.shared_tokens if follows else sequence.paged_tokens
                wanted = self._with_room(len(sequence.known()) - before) * self._cache.token_bytes
                held = 0 if sequence.row is None else row_caches.nbytes(sequence.row)
                total += max(0, wanted - held)
        return total

    def _with_room(self, tokens: int) -> int:
        """Tokens that a row of so many takes: caches grow by a step beyond what they hold."""
        return tokens + self.step
