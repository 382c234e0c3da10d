"""What HTTP and admin code may ask of the engine. No MLX in here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.engine.next_turns import MakeNextTurns
    from mlxceld.engine.request import GenerationRequest, NextTurn
    from mlxceld.engine.stream import EventStream
    from mlxceld.models.budgets import Capacities
    from mlxceld.models.text import TextCodec
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
    from mlxceld.prompt_cache.trace_feed import TraceFeed
    from mlxceld.telemetry.status import EngineSnapshot


class EngineClient(Protocol):
    """The engine as its callers see it; every method may be called from the event loop."""

    @property
    def snapshot(self) -> EngineSnapshot:
        """The newest published state; never waits."""

    @property
    def text(self) -> TextCodec:
        """The loaded model's tokenizer; raises NotReadyError until the model is loaded."""

    def capacities(self, settings: Settings, given: Collection[str]) -> Capacities:
        """What the stores may hold with the loaded model and these settings.

        ``given`` names those that the operator has set. Raises NotReadyError until a model is
        loaded.
        """

    def submit(self, requests: Sequence[GenerationRequest]) -> list[EventStream]:
        """Queue requests, all or none, and return their event streams in order.

        Raises QueueFullError, NotReadyError, InvalidRequestError or ContextLengthError; then
        nothing was queued.
        """

    def foretell_with(self, make: MakeNextTurns) -> None:
        """Ask ``make`` about the turns after replies; till then nobody is asked."""

    def cancel(self, request_id: str) -> bool:
        """Stop a request within one step; False if none of that id is in flight."""

    def prefetch(self, turn: NextTurn) -> None:
        """Compute ahead what a conversation's next turn will begin with, when there is time.

        Raises NotReadyError where no requests are taken.
        """

    def flush(
        self, *, store: str = "all", session: str | None = None, dry_run: bool = False
    ) -> Future[FlushReport]:
        """Drop cached entries between two steps; ``store`` is all, kv or snapshots."""

    def resize(
        self, changes: BudgetChange, *, dry_run: bool = False, generation: int | None = None
    ) -> Future[ResizeReport]:
        """Change the live budgets between two steps, evicting down to them at once.

        Fails with GenerationConflictError where ``generation`` is given and is not the budget's.
        """

    def pin(self, request: GenerationRequest, *, keep: bool = True) -> Future[PinReport]:
        """Keep the prompt of a request that has ended; fails with PinError if it is not stored.

        With ``keep`` off it is only found.
        """

    def unpin(self, digest: str) -> Future[PinReport | None]:
        """Leave a pinned entry to its age; None if no pinned entry has that digest."""

    def entries(
        self, *, store: str = "all", session: str | None = None, limit: int | None = None
    ) -> Future[EntryList]:
        """List what is stored, the newest uses first; ``session`` is a raw key or its hash."""

    def verify(self) -> Future[VerifyReport]:
        """Check, between two steps, that what is adopted goes on as if it had been computed.

        If it does not, nothing is stored or adopted any more.
        """

    def explain(self, tokens: Sequence[int], session: str, signature: str) -> Future[ExplainReport]:
        """Foretell what a request would reuse, between two steps; counts and stores nothing.

        ``session`` is the raw key, ``signature`` how the prompt was rendered.
        """

    def set_trace(self, enabled: bool) -> None:
        """Switch the cache trace: its log lines, and what is fed to those who follow it."""

    def follow_trace(self, wake: Callable[[], None]) -> TraceFeed:
        """A feed of what is traced from now on; ``wake`` is called, on any thread, at news."""

    def trace_tail(self, n: int) -> list[TraceEvent]:
        """The last ``n`` cache events, oldest first; kept whether the trace is on or off."""

    def drain(self) -> None:
        """Take no more requests; those accepted run on."""
