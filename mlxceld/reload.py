"""Reading again, in a running daemon, what may change in one: the API keys and the log level."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mlxceld.api.keys import ApiKeys, KeyFileError
from mlxceld.config import SETTINGS, ConfigFileError, ResolvedSettings, value_of
from mlxceld.telemetry import logging as log_setup
from mlxceld.telemetry.audit import AuditLog
from mlxceld.telemetry.metrics import Metrics

log = logging.getLogger("mlxceld.reload")


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
        audit: AuditLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._started_with = resolved
        self._level = resolved.settings.log.level
        self._keys = keys
        self._reread = reread
        self._metrics = metrics
        self._audit = audit or AuditLog()
        self._clock = clock

    def reload(self, actor: str) -> bool:
        """Read settings and keys; with an error in either, nothing changes and False is returned.

        What has changed but needs a restart is named.
        """
        began = self._clock()
        before = after = self._state()
        error = ""
        try:
            resolved = self._reread()
            self._keys.reload()
        except (ConfigFileError, KeyFileError) as failure:
            error = str(failure)
            log.error("reload: %s; everything stays as it was", error)  # noqa: TRY400 - one line
        else:
            after = self._apply(resolved)
        self._metrics.reload_successful = not error
        self._audit.record(
            actor=actor,
            action="config.reload",
            target="daemon",
            before=before,
            after=after,
            outcome="invalid_config" if error else "ok",
            request_id=None,
            duration=self._clock() - began,
        )
        return not error

    def _apply(self, resolved: ResolvedSettings) -> dict[str, object]:
        level = resolved.settings.log.level
        if level != self._level:
            log_setup.set_level(level)
            log.info("reload: log.level %s -> %s", self._level, level)
            self._level = level
        log.info("reload: API keys: %s", ", ".join(self._keys.names) or "none")
        waiting = self._need_restart(resolved)
        if waiting:
            log.warning("reload: changed, but needs a restart: %s", ", ".join(waiting))
        return self._state()

    def _state(self) -> dict[str, object]:
        return {"log.level": self._level, "api_keys": list(self._keys.names)}

    def _need_restart(self, resolved: ResolvedSettings) -> list[str]:
        """The settings whose value is another one now and that only a start reads."""
        old, new = self._started_with.settings, resolved.settings
        return [
            name
            for name, row in SETTINGS.items()
            # The keys' file is read again in place; another file would be another setting.
            if (not row.spec.live or name == "api_keys_file")
            and value_of(old, name) != value_of(new, name)
        ]
