"""What happens when memory runs short: padding is avoided, and the youngest sequences make way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mlxceld.engine import grouping
from mlxceld.engine.sequence import Phase

if TYPE_CHECKING:
    from mlxceld.engine.batch import DecodeBatch
    from mlxceld.engine.kv_memory import KvMemory
    from mlxceld.engine.prefix_cache import PrefixMemory
    from mlxceld.engine.recorder import Recorder
    from mlxceld.engine.scheduler import Scheduler
    from mlxceld.engine.sequence import Sequence


class Pressure:
    """Keeps batch and pool within the budget, step by step. Needs a pipeline break throughout.

    A sequence that makes way stores what it has computed, as far as that fits, and goes on from
    there when its turn comes; its answer is the same.
    """

    def __init__(
        self,
        memory: KvMemory,
        batch: DecodeBatch,
        scheduler: Scheduler,
        reuse: PrefixMemory,
        recorder: Recorder,
    ) -> None:
        self._memory = memory
        self._batch = batch
        self._scheduler = scheduler
        self._reuse = reuse
        self._recorder = recorder

    def before_decode(self, pause: Callable[[], None], in_flight: list[Sequence]) -> None:
        """Before the rows grow: entries go first, then the youngest sequences make way.

        ``pause`` breaks the pipeline, which is done only where there is not enough room.
        """
        growth = self._batch.growth()
        if not growth or self._memory.over() + growth <= 0:
            return
        self._batch.grow_less()
        if self._memory.over() + self._batch.growth() <= 0:
            return
        pause()
        while (growth := self._batch.growth()) and not self._memory.make_room(growth):
            if not self._make_way(in_flight):
                return

    def after_prefill(self, in_flight: list[Sequence]) -> None:
        """In case that prompts took more than was promised them."""
        while self._memory.over() > 0 and not self._memory.make_room(0):
            if not self._make_way(in_flight):
                return

    def before_joining(self, newcomers: list[Sequence], *, merged: bool) -> None:
        """Move rows into the pool before the others are padded to their length.

        Those of which the newcomers read a part there, too, and those that are long by themselves.
        """
        for row, common in grouping.latecomers(self._batch.rows, newcomers):
            self._page_out(row, newcomers, common)
        while (longest := self._memory.too_padded(newcomers)) is not None:
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
        self._reuse.reading.page_out(row, tokens_at_most)
        if inside:
            self._batch.join([row], None)

    def _make_way(self, in_flight: list[Sequence]) -> bool:
        """Send the youngest sequence back to the line; False if there is only one to send."""
        running = [s for s in in_flight if s.phase in (Phase.PREFILL, Phase.DECODE)]
        if len(running) < 2:
            return False
        youngest = max(running, key=lambda sequence: sequence.seq_id)
        self._batch.leave([youngest], self._reuse.should_donate)
        self._scheduler.remove(youngest)
        self._memory.note_tails()
        self._reuse.share(youngest)
        self._reuse.reading.release(youngest)
        youngest.make_way()
        youngest.note = "made way for older requests, waits for memory"
        self._scheduler.add_back(youngest)
        self._recorder.preemptions += 1
        return True
