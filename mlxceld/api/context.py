"""What every handler of the public API works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from mlxceld.api.errors import not_ready
from mlxceld.engine.errors import NotReadyError
from mlxceld.engine.reuse_plan import ReuseKind
from mlxceld.telemetry.status import EngineState

if TYPE_CHECKING:
    from mlxceld.api.keys import ApiKeys
    from mlxceld.config import Settings
    from mlxceld.engine.client import EngineClient
    from mlxceld.models.text import TextCodec
    from mlxceld.telemetry.status import EngineStatus, ModelStatus
    from mlxceld.web.lanes import Lanes

MetricsText = Callable[[str], tuple[bytes, str]]
"""From an Accept header to the exposition and its content type."""


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The daemon as the public API reaches it.

    ``clock`` is the monotonic clock that the engine's heartbeat is on, ``wall`` Unix time, both in
    seconds; ``ids`` makes request ids. ``keep_alive`` is how long a stream may be silent, and
    ``stall_limit`` how old a busy engine's heartbeat may be, in seconds. ``lanes`` are where
    bodies are parsed, conversations rendered and texts tokenized.
    """

    engine: EngineClient
    settings: Settings
    keys: ApiKeys
    clock: Callable[[], float]
    wall: Callable[[], float]
    ids: Callable[[], str]
    metrics_text: MetricsText
    keep_alive: float
    stall_limit: float
    lanes: Lanes

    def model(self) -> ModelStatus:
        """The loaded model; raises a 503 ApiError until there is one."""
        snapshot = self.engine.status
        if snapshot.model is None:
            raise not_ready(unready_reason(snapshot) or "the model is not loaded")
        return snapshot.model

    @property
    def keeps_snapshots(self) -> bool:
        """Whether the model resumes only where its state was kept: at a prompt's boundaries."""
        model = self.engine.status.model
        return model is not None and model.reuse == ReuseKind.SNAPSHOTS

    def text(self) -> TextCodec:
        """The loaded model's tokenizer; raises a 503 ApiError until there is one."""
        try:
            return self.engine.text
        except NotReadyError as error:
            raise not_ready(unready_reason(self.engine.status) or str(error)) from None


CONTEXT: web.AppKey[ApiContext] = web.AppKey("api_context", ApiContext)
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
CLIENT: web.RequestKey[str] = web.RequestKey("client", str)


def unready_reason(snapshot: EngineStatus) -> str | None:
    """Why requests are not answered now; None if they are."""
    if snapshot.state is not EngineState.READY:
        detail = f": {snapshot.detail}" if snapshot.detail else ""
        return f"the engine is {snapshot.state.value}{detail}"
    return snapshot.fault or None
