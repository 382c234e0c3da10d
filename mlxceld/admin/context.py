"""What every admin handler works with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from mlxceld.admin.reports import ReloadReport
from mlxceld.config import ResolvedSettings

if TYPE_CHECKING:
    from mlxceld.api.prompts import Prompts
    from mlxceld.engine.client import EngineClient
    from mlxceld.telemetry.audit import AuditLog
    from mlxceld.web.lanes import LaneReport


@dataclass(frozen=True, slots=True)
class AdminContext:
    """The daemon as the admin API reaches it.

    ``prompts`` reads what the public API would be sent; ``lanes`` tells how the threads do that
    prepare requests. ``drain`` stops the intake of requests; ``address`` tells where the public
    API listens. ``monotonic`` is a clock in seconds; ``started`` is when the daemon did, on it and
    in Unix time. ``command_timeout`` bounds the wait for the engine to come between two steps, in
    seconds. ``reload`` reads the settings again for a caller of that name; it raises ReloadError,
    and then nothing is changed. ``background`` holds what goes on after its answer.
    """

    engine: EngineClient
    prompts: Prompts
    resolved: ResolvedSettings
    audit: AuditLog
    drain: Callable[[], None]
    address: Callable[[], tuple[str, int]]
    monotonic: Callable[[], float]
    started_monotonic: float
    started_unix: float
    command_timeout: float
    lanes: Callable[[], LaneReport]
    reload: Callable[[str], Awaitable[ReloadReport]] | None = None
    background: set[asyncio.Task[Any]] = field(default_factory=set)


CONTEXT: web.AppKey[AdminContext] = web.AppKey("admin_context", AdminContext)
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
