"""What the admin API has done to the stores, on the engine thread and between two steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from mlxceld.engine.errors import NotReadyError
from mlxceld.prompt_cache.explain import ExplainReport
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.radix import as_tokens
from mlxceld.prompt_cache.reports import FlushReport
from mlxceld.telemetry.status import EngineState

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.engine.checks import Checks
    from mlxceld.engine.core import EngineCore
    from mlxceld.engine.prefix_cache import PrefixMemory
    from mlxceld.engine.publisher import Publisher
    from mlxceld.engine.request import GenerationRequest
    from mlxceld.models.loading import LoadedModel
    from mlxceld.prompt_cache.prompt_cache import PromptCache
    from mlxceld.prompt_cache.reports import (
        BudgetChange,
        EntryList,
        PinReport,
        ResizeReport,
        TraceEvent,
        VerifyReport,
    )
    from mlxceld.prompt_cache.trace import Trace
    from mlxceld.prompt_cache.trace_feed import TraceFeed

T = TypeVar("T")


class StoreOrders(ABC):
    """The orders about what is stored, and the trace of it.

    Public methods may be called from any thread; what they return is settled on the engine's.
    The engine says how work gets between two steps, and sets model, core and reuse: they are None
    until a model has been loaded.
    """

    def __init__(
        self, settings: Settings, trace: Trace, cache: PromptCache, publisher: Publisher
    ) -> None:
        self._settings = settings
        self._trace = trace
        self._cache = cache
        self._publisher = publisher
        self._state = EngineState.LOADING
        self._model: LoadedModel | None = None
        self._core: EngineCore | None = None
        self._reuse: PrefixMemory | None = None
        self._checks: Checks | None = None

    @abstractmethod
    def call(self, work: Callable[[], T]) -> Future[T]:
        """Run ``work`` on the engine thread between two steps."""

    @abstractmethod
    def _publish(self, *, force: bool = False) -> None:
        """Replace the snapshot by what is now."""

    def flush(
        self, *, store: str = "all", session: str | None = None, dry_run: bool = False
    ) -> Future[FlushReport]:
        """Drop cached entries between two steps; ``store`` is all, kv or snapshots."""

        def work() -> FlushReport:
            core, _ = self._paused()
            report = self._cache.flush(store, session, dry_run=dry_run)
            core.give_back()
            self._publish(force=True)
            return report

        return self.call(work)

    def resize(
        self, changes: BudgetChange, *, dry_run: bool = False, generation: int | None = None
    ) -> Future[ResizeReport]:
        """Change the live budgets between two steps, evicting down to them at once.

        Fails with GenerationConflictError where ``generation`` is given and is not the budget's.
        """

        def work() -> ResizeReport:
            core, _ = self._paused()
            report = self._cache.resize(changes, dry_run=dry_run, generation=generation)
            core.give_back()
            self._publish(force=True)
            return report

        return self.call(work)

    def entries(
        self, *, store: str = "all", session: str | None = None, limit: int | None = None
    ) -> Future[EntryList]:
        """List what is stored, the newest uses first, as it is between two steps."""

        def work() -> EntryList:
            self._loaded_reuse()
            return self._cache.entries(store, session=session, limit=limit)

        return self.call(work)

    def pin(self, request: GenerationRequest, *, keep: bool = True) -> Future[PinReport]:
        """Keep the prompt of a request that has ended; fails with PinError if it is not stored.

        With ``keep`` off it is only found.
        """

        def work() -> PinReport:
            bucket = self._bucket(request.template_signature)
            return self._cache.pin(bucket, request.session, as_tokens(request.tokens), keep=keep)

        return self.call(work)

    def unpin(self, digest: str) -> Future[PinReport | None]:
        """Leave a pinned entry to its age; None if no pinned entry has that digest."""

        def work() -> PinReport | None:
            self._loaded_reuse()
            return self._cache.unpin(digest)

        return self.call(work)

    def verify(self) -> Future[VerifyReport]:
        """Make all checks of the load anew, between two steps, and keep what they find.

        The report is on whether what is adopted goes on as if it had been computed. If it does
        not, nothing is stored or adopted any more.
        """

        def work() -> VerifyReport:
            core, reuse = self._paused()
            model = self._model
            if model is None:
                raise NotReadyError(f"the engine is {self._state.value}")
            if self._checks is None:
                raise NotReadyError(f"the engine is {self._state.value}")
            self._checks.forget()
            pool = reuse.reading.block_shapes()
            if pool is not None:
                reuse.reading.sharing = self._checks.sharing(*pool)
            core.obey(self._checks.batch())
            report = self._check_reuse(model, core, reuse)
            self._publish(force=True)
            return report

        return self.call(work)

    def explain(self, tokens: Sequence[int], session: str, signature: str) -> Future[ExplainReport]:
        """Foretell what a request would reuse, between two steps; counts and stores nothing."""

        def work() -> ExplainReport:
            return self._cache.explain(self._bucket(signature), session, tokens)

        return self.call(work)

    def set_trace(self, enabled: bool) -> None:
        """Switch the cache trace: its log lines, and what is fed to those who follow it."""
        self._trace.switch(enabled)
        self._publisher.trace_switched()

    def follow_trace(self, wake: Callable[[], None]) -> TraceFeed:
        """A feed of what is traced from now on; ``wake`` is called, on any thread, at news."""
        return self._trace.follow(wake)

    def trace_tail(self, n: int) -> list[TraceEvent]:
        """The last ``n`` cache events, oldest first; kept whether the trace is on or off."""
        return self._trace.tail(n)

    def _check_reuse(
        self, model: LoadedModel, core: EngineCore, reuse: PrefixMemory
    ) -> VerifyReport:
        """Check reuse, keep all verdicts, and tell and do what follows from them."""
        from mlxceld.engine.setup import with_verdicts
        from mlxceld.engine.verify import obey

        if self._checks is None:
            raise NotReadyError(f"the engine is {self._state.value}")
        report = self._checks.reuse()
        self._checks.keep()
        status = with_verdicts(
            model.status, core.verdict, reuse.reading.sharing, self._checks.checked_at
        )
        status = obey(report, status, reuse, self._cache)
        if not report.passed:
            core.give_back()
        self._publisher.recorder.background_tokens_computed += report.tokens_computed
        self._publisher.model = status
        self._model = replace(model, status=status)
        return report

    def _paused(self) -> tuple[EngineCore, PrefixMemory]:
        """The core with no step in flight, and its stores, which may be changed then."""
        reuse = self._loaded_reuse()
        if self._core is None:
            raise NotReadyError(f"the engine is {self._state.value}")
        self._core.pause()
        return self._core, reuse

    def _bucket(self, signature: str) -> Bucket:
        """The loaded model's namespace for prompts of a template signature."""
        if self._model is None or self._reuse is None:
            raise NotReadyError(f"the engine is {self._state.value}")
        return Bucket(self._model.status.id, signature)

    def _loaded_reuse(self) -> PrefixMemory:
        if self._reuse is None:
            raise NotReadyError(f"the engine is {self._state.value}")
        return self._reuse
