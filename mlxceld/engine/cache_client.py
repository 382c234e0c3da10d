"""What may be asked about the caches, from any thread: a command each, and its report's future."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from mlxceld.engine.commands import (
    Command,
    Explain,
    Flush,
    ListEntries,
    Pin,
    Resize,
    Unpin,
    Verify,
)

if TYPE_CHECKING:
    from mlxceld.prompt_cache.explain import ExplainReport
    from mlxceld.prompt_cache.reports import (
        BudgetChange,
        EntryList,
        FlushReport,
        PinReport,
        ResizeReport,
        TraceEvent,
        VerifyReport,
    )
    from mlxceld.prompt_cache.trace import Trace
    from mlxceld.prompt_cache.trace_feed import TraceFeed


class CacheClient:
    """Asks the engine thread, which carries commands out between two steps.

    ``put`` hands a command and its future over; it raises NotReadyError where nothing is taken any
    more. The trace is read and switched without it.
    """

    def __init__(
        self,
        put: Callable[[Command, Future[Any]], None],
        trace: Trace,
        trace_switched: Callable[[], None],
    ) -> None:
        self._put = put
        self._trace = trace
        self._trace_switched = trace_switched

    def flush(
        self, *, store: str = "all", session: str | None = None, dry_run: bool = False
    ) -> Future[FlushReport]:
        """Drop cached entries; ``store`` is all, kv or snapshots."""
        return self._ask(Flush(store, session, dry_run))

    def resize(
        self, changes: BudgetChange, *, dry_run: bool = False, generation: int | None = None
    ) -> Future[ResizeReport]:
        """Change the live budgets, evicting down to them at once.

        Fails with GenerationConflictError where ``generation`` is given and is not the budget's.
        """
        return self._ask(Resize(changes, dry_run, generation))

    def entries(
        self, *, store: str = "all", session: str | None = None, limit: int | None = None
    ) -> Future[EntryList]:
        """List what is stored, the newest uses first; ``session`` is a raw key or its hash."""
        return self._ask(ListEntries(store, session, limit))

    def pin(
        self, tokens: Sequence[int], session: str, signature: str, *, keep: bool = True
    ) -> Future[PinReport]:
        """Keep a stored prompt, rendered by ``signature``; fails with PinError if there is none.

        With ``keep`` off it is only found.
        """
        return self._ask(Pin(tokens, session, signature, keep))

    def unpin(self, digest: str) -> Future[PinReport | None]:
        """Leave a pinned entry to its age; None if no pinned entry has that digest."""
        return self._ask(Unpin(digest))

    def verify(self) -> Future[VerifyReport]:
        """Make all checks of the load anew, and keep what they find.

        The report is on whether what is adopted goes on as if it had been computed. If it does
        not, nothing is stored or adopted any more.
        """
        return self._ask(Verify())

    def explain(self, tokens: Sequence[int], session: str, signature: str) -> Future[ExplainReport]:
        """Foretell what a request would reuse; counts and stores nothing.

        ``session`` is the raw key, ``signature`` how the prompt was rendered.
        """
        return self._ask(Explain(tokens, session, signature))

    def set_trace(self, enabled: bool) -> None:
        """Switch the cache trace: its log lines, and what is fed to those who follow it."""
        self._trace.switch(enabled)
        self._trace_switched()

    def follow_trace(self, wake: Callable[[], None]) -> TraceFeed:
        """A feed of what is traced from now on; ``wake`` is called, on any thread, at news."""
        return self._trace.follow(wake)

    def trace_tail(self, n: int) -> list[TraceEvent]:
        """The last ``n`` cache events, oldest first; kept whether the trace is on or off."""
        return self._trace.tail(n)

    def _ask(self, command: Command) -> Future[Any]:
        future: Future[Any] = Future()
        self._put(command, future)
        return future
