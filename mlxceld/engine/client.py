"""What HTTP and admin code may ask of the engine. No MLX in here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.engine.cache_client import CacheClient
    from mlxceld.engine.next_turns import MakeNextTurns
    from mlxceld.engine.request import GenerationRequest, NextTurn
    from mlxceld.engine.stream import EventStream
    from mlxceld.models.budgets import Capacities
    from mlxceld.models.text import TextCodec
    from mlxceld.telemetry.status import EngineStatus


class EngineClient(Protocol):
    """The engine as its callers see it; every method may be called from the event loop."""

    @property
    def status(self) -> EngineStatus:
        """The newest published state; never waits."""

    @property
    def cache(self) -> CacheClient:
        """What may be asked about the caches."""

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

    def drain(self) -> None:
        """Take no more requests; those accepted run on."""
