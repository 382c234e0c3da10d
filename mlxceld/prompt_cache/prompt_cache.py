"""All that is stored of prompts: one object over the stores, with one budget."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mlxceld.prompt_cache.entry_store import EntryStore
from mlxceld.prompt_cache.explain import ExplainReport, explain
from mlxceld.prompt_cache.inventory import list_entries
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.rejects import RejectLog
from mlxceld.prompt_cache.reports import (
    Budget,
    BudgetChange,
    EntryList,
    FlushReport,
    GenerationConflictError,
    PinError,
    PinReport,
    ResizeReport,
)
from mlxceld.prompt_cache.trace import EventSink

ALL = "all"
"""What flushes and lists call every store at once."""

S = TypeVar("S", bound=EntryStore[Any])


class PromptCache:
    """Owns the stores that the loaded model uses, and what is true of all of them.

    Belongs to the thread of its stores. Before a model is loaded it has none: it is a budget then.
    A store is made with ``budget``, ``clock``, ``on_event``, ``rejects``, ``switched_on`` and
    ``min_prefix`` of its cache, and added to it.
    """

    def __init__(
        self,
        budget: Budget,
        clock: Callable[[], float],
        on_event: EventSink,
        rejects: RejectLog,
        *,
        enabled: bool = True,
        min_prefix: int = 1,
    ) -> None:
        self.budget = budget
        self.clock = clock
        self.on_event = on_event
        self.rejects = rejects
        self.switched_on = enabled
        self.min_prefix = min_prefix
        self.generation = 0
        self._stores: list[EntryStore[Any]] = []

    @property
    def stores(self) -> tuple[EntryStore[Any], ...]:
        """The stores, in the order in which they were added."""
        return tuple(self._stores)

    @property
    def enabled(self) -> bool:
        """Whether the budget of prefixes allows anything to be stored."""
        limits = self.budget.kv
        return self.switched_on and limits.capacity_bytes > 0 and limits.max_entries > 0

    @property
    def bytes(self) -> int:
        """What all stores hold."""
        return sum(store.bytes for store in self._stores)

    def begin_with(self, budget: Budget) -> None:
        """Set the limits before there is a store; raises RuntimeError afterwards."""
        if self._stores:
            raise RuntimeError("there are stores by now; their budget is resized")
        self.budget = budget

    def add(self, store: S) -> S:
        """Take a store in; it has this cache's budget."""
        self._stores.append(store)
        return store

    def chosen(self, name: str = ALL) -> list[EntryStore[Any]]:
        """The stores of a name, or all of them."""
        return [store for store in self._stores if name in (ALL, store.name)]

    def sweep(self) -> int:
        """Drop what has outlived its time; returns how many entries went."""
        return sum(store.sweep() for store in self._stores)

    def flush(
        self, name: str = ALL, session: str | None = None, *, dry_run: bool = False
    ) -> FlushReport:
        """Drop the entries of the stores of a name, all or those of one session."""
        report = FlushReport(0, 0, 0, dry_run)
        for store in self.chosen(name):
            report = report.plus(store.flush(session, dry_run=dry_run))
        return report

    def resize(
        self, changes: BudgetChange, *, dry_run: bool = False, generation: int | None = None
    ) -> ResizeReport:
        """Change the live limits, evicting down to them at once; what is pinned goes last.

        A capacity or a maximum of 0 disables its store and empties it. Raises
        GenerationConflictError if ``generation`` is given and is not the budget's; then nothing
        is changed.
        """
        if generation is not None and generation != self.generation:
            raise GenerationConflictError(generation, self.generation)
        before, after = self.budget, self.budget.changed(changes)
        evicted = [store.resize(changes, dry_run=dry_run) for store in self._stores]
        if not dry_run:
            self.budget = after
            self.generation += 1
        return ResizeReport(
            before,
            after,
            sum(one.evicted_entries for one in evicted),
            sum(one.evicted_bytes for one in evicted),
            sum(one.deferred_bytes for one in evicted),
            self.generation,
            dry_run,
        )

    def entries(
        self, name: str = ALL, *, session: str | None = None, limit: int | None = None
    ) -> EntryList:
        """What is stored, the newest uses first."""
        return list_entries(self.chosen(name), session=session, limit=limit)

    def pin(
        self, bucket: Bucket, session: str, tokens: array[int], *, keep: bool = True
    ) -> PinReport:
        """Keep a stored prompt in whichever store has it; raises PinError if none can.

        With ``keep`` off it is only found.
        """
        refusal = PinError("there is no store")
        for store in self._stores:
            try:
                return store.pin(bucket, session, tokens, keep=keep)
            except PinError as error:
                refusal = error
        raise refusal

    def unpin(self, digest: str) -> PinReport | None:
        """Leave a pinned entry to its age; None if no pinned entry has that digest."""
        found = (store.unpin(digest) for store in self._stores)
        return next((report for report in found if report is not None), None)

    def explain(self, bucket: Bucket, session: str, tokens: Sequence[int]) -> ExplainReport:
        """What a request of these tokens would reuse now, by the store that serves most of it.

        Changes and counts nothing. Raises ValueError where there is no store.
        """
        reports = [explain(store, bucket, session, tokens) for store in self._stores]
        return max(reports, key=lambda report: report.reused_tokens)

    def switch_off(self) -> None:
        """Store and adopt nothing any more, whatever the budget; what is stored goes."""
        self.switched_on = False
        for store in self._stores:
            store.switch_off()

    def close(self) -> None:
        """Let go of all stores and what they hold, on the thread that they belong to."""
        self._stores.clear()

    def check(self) -> None:
        """Raise AssertionError, with the numbers, if the books of a store do not balance."""
        for store in self._stores:
            store.check()
            assert store.budget == self.budget, f"{store.budget} in {store.name}, {self.budget}"
