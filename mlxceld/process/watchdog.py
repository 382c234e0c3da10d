"""The word to the service manager that all is well, given only while it is.

It is given from the event loop, so that a stuck loop gives none, and only while the engine's
heartbeat moves, so that a stuck engine gets none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mlxceld.process.notify import Notifier
from mlxceld.telemetry.status import EngineState, EngineStatus

IDLE_SECONDS = 60.0
"""How old the heartbeat of an idle engine may be: it turns over every half minute."""

_NOT_SERVING = (EngineState.LOADING, EngineState.STOPPED, EngineState.FAILED)


def engine_moves(snapshot: EngineStatus, now: float, busy_seconds: float) -> bool:
    """Whether the engine is well at ``now``, on the clock of its heartbeat.

    While it works the heartbeat may be ``busy_seconds`` old. While it is idle it may be older by
    :data:`IDLE_SECONDS`; a step that hangs at once is published as idle. While it loads or after
    it has ended, the manager's limits for starts and stops hold, not this one.
    """
    if snapshot.state in _NOT_SERVING:
        return True
    limit = busy_seconds if snapshot.busy else busy_seconds + IDLE_SECONDS
    return now - snapshot.heartbeat <= limit


async def keep_watchdog(
    notifier: Notifier,
    alive: Callable[[], bool],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Tell the manager twice in each of its periods, as long as ``alive`` says so; for ever.

    Returns at once if the manager does not ask.
    """
    period = notifier.watchdog_seconds
    if period is None:
        return
    while True:
        if alive():
            notifier.watchdog()
        await sleep(period / 2)
