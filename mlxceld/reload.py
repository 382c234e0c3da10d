"""Reading again, in a running daemon, what may change in one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mlxceld.admin.reports import ReloadError, ReloadReport
from mlxceld.admin.tokens import AdminTokens, TokenFileError
from mlxceld.api.keys import ApiKeys, KeyFileError
from mlxceld.config import SETTINGS, ConfigFileError, ResolvedSettings, Source, value_of
from mlxceld.engine.errors import EngineError
from mlxceld.prompt_cache.reports import BudgetChange
from mlxceld.telemetry import logging as log_setup
from mlxceld.telemetry.audit import AuditLog
from mlxceld.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from mlxceld.engine.client import EngineClient

log = logging.getLogger("mlxceld.reload")

LIMITS = {
    "prompt_cache.capacity_bytes": "capacity_bytes",
    "prompt_cache.max_entries": "max_entries",
    "prompt_cache.ttl": "ttl_seconds",
    "prompt_cache.snapshot_capacity_bytes": "snapshot_capacity_bytes",
    "prompt_cache.snapshot_max_entries": "snapshot_max_entries",
    "prompt_cache.snapshot_ttl": "snapshot_ttl_seconds",
}
"""The settings that are limits of the stores, and what a resize calls them."""

_RESIZE_SECONDS = 30.0

_DERIVED = frozenset({"prompt_cache.capacity_bytes", "prompt_cache.snapshot_capacity_bytes"})
"""The limits that follow from the loaded model where nobody sets them."""


class Reloader:
    """Reloads on request and says what changed.

    ``reread`` resolves the settings again from the same flags, environment and file.
    """

    def __init__(
        self,
        resolved: ResolvedSettings,
        keys: ApiKeys,
        reread: Callable[[], ResolvedSettings],
        metrics: Metrics,
        *,
        tokens: AdminTokens | None = None,
        engine: EngineClient | None = None,
        audit: AuditLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._started_with = resolved
        self._in_force = resolved
        self._keys = keys
        self._tokens = tokens
        self._engine = engine
        self._reread = reread
        self._metrics = metrics
        self._audit = audit or AuditLog()
        self._clock = clock

    async def on_signal(self, actor: str) -> None:
        """Reload for nobody who waits for the answer, on record all the same."""
        began = self._clock()
        outcome, changes = "ok", {}
        try:
            changes = (await self.reload(actor)).applied
        except ReloadError:
            outcome = "invalid_config"
        self._audit.record(
            actor=actor,
            action="config.reload",
            target="daemon",
            before={name: change["before"] for name, change in changes.items()},
            after={name: change["after"] for name, change in changes.items()},
            outcome=outcome,
            request_id=None,
            duration=self._clock() - began,
        )

    async def reload(self, actor: str) -> ReloadReport:
        """Read settings, keys and tokens and apply what may change.

        With an error in any of them nothing changes, and ReloadError is raised. A limit that was
        changed at run time stays as it is unless it is another one in the file now.
        """
        try:
            resolved = self._reread()
            keys = None if self._keys.file is None else ApiKeys(self._keys.file)
            tokens = None if self._tokens is None else AdminTokens(self._tokens.file)
        except (ConfigFileError, KeyFileError, TokenFileError) as failure:
            self._metrics.reload_successful = False
            log.error("reload: %s; everything stays as it was", failure)  # noqa: TRY400 - one line
            lines = [str(e) for e in getattr(failure, "errors", ())] or [str(failure)]
            raise ReloadError(str(failure), lines) from failure
        report = await self._apply(resolved)
        if keys is not None:
            names = list(self._keys.names)
            self._keys.take(keys)
            if names != list(self._keys.names):
                report.applied["api_keys_file"] = {"before": names, "after": list(keys.names)}
            log.info("reload: API keys: %s", ", ".join(self._keys.names))
        if tokens is not None and self._tokens is not None and self._tokens.take(tokens):
            report.applied["admin.token_file"] = {"before": None, "after": f"{len(tokens)} tokens"}
        self._metrics.reload_successful = not report.refused
        for name, change in report.applied.items():
            log.info("reload: %s %s -> %s", name, change["before"], change["after"])
        if report.needs_restart:
            log.warning("reload: changed, but needs a restart: %s", ", ".join(report.needs_restart))
        return report

    async def _apply(self, resolved: ResolvedSettings) -> ReloadReport:
        report = ReloadReport()
        changed = self._changed(resolved)
        for name in changed:
            if name == "log.level":
                log_setup.set_level(resolved.settings.log.level)
                report.applied[name] = self._step(resolved, name)
            elif name not in LIMITS:
                report.needs_restart[name] = self._step(resolved, name)
        limits = [name for name in changed if name in LIMITS]
        if limits:
            values: dict[str, Any] = {}
            why = await self._resize(resolved, limits, values)
            for name in limits:
                if why:
                    report.refused[name] = why
                else:
                    report.applied[name] = self._step(resolved, name, values[LIMITS[name]])
            if why:
                log.error("reload: %s: %s", ", ".join(limits), why)
                return report
        self._in_force = resolved
        return report

    async def _resize(
        self, resolved: ResolvedSettings, names: list[str], values: dict[str, Any]
    ) -> str:
        """Change the stores' limits and put them into ``values``; returns why not, or nothing."""
        if self._engine is None:
            return "there is no engine"
        try:
            values.update({LIMITS[name]: self._limit(resolved, name) for name in names})
            future = self._engine.cache.resize(BudgetChange(**values))
            await asyncio.wait_for(asyncio.wrap_future(future), _RESIZE_SECONDS)
        except EngineError as error:
            return str(error)
        except TimeoutError:
            return f"the engine did not get to it in {_RESIZE_SECONDS:g} s"
        return ""

    def _limit(self, resolved: ResolvedSettings, name: str) -> Any:
        """The value of a limit with these settings; raises EngineError without a model."""
        if name in _DERIVED and self._engine is not None and not _is_set(resolved, name):
            given = [other for other in SETTINGS if _is_set(resolved, other)]
            capacities = self._engine.capacities(resolved.settings, given)
            snapshots = name == "prompt_cache.snapshot_capacity_bytes"
            return (capacities.snapshots if snapshots else capacities.kv).bytes
        return value_of(resolved.settings, name)

    def _changed(self, resolved: ResolvedSettings) -> list[str]:
        """What is another value now than at the last reload, or than at the start.

        The latter for what only a start reads: it stays to be done.
        """
        names = []
        for name in SETTINGS:
            live = name == "log.level" or name in LIMITS
            old = self._in_force if live else self._started_with
            changed = value_of(old.settings, name) != value_of(resolved.settings, name)
            # The default's own number, once it is set, is no longer derived from the model.
            derived = name in _DERIVED and _is_set(old, name) != _is_set(resolved, name)
            if changed or derived:
                names.append(name)
        return names

    def _step(self, resolved: ResolvedSettings, name: str, after: Any = None) -> dict[str, Any]:
        row = SETTINGS[name]
        live = name == "log.level" or name in LIMITS
        old = self._in_force if live else self._started_with
        return {
            "before": row.kind.format(value_of(old.settings, name)) or None,
            "after": row.kind.format(value_of(resolved.settings, name) if after is None else after)
            or None,
        }


def _is_set(resolved: ResolvedSettings, name: str) -> bool:
    return resolved.sources[name] is not Source.DEFAULT
