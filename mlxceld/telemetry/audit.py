"""The trail of administrative changes: one line each, on a logger of its own."""

from __future__ import annotations

import logging

from mlxceld.telemetry.logging import AUDIT_LOGGER


class AuditLog:
    """Writes who changed what, from what to what, and how it went."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger(AUDIT_LOGGER)

    def record(
        self,
        actor: str,
        action: str,
        target: str,
        before: object,
        after: object,
        outcome: str,
        request_id: str | None,
        duration: float,
    ) -> None:
        """Log one change.

        ``actor`` says who (``uid:501``, a token's fingerprint, a signal); ``before`` and ``after``
        are plain values, None where there is nothing to tell; ``outcome`` is ``ok`` or an error's
        code; ``duration`` is seconds.
        """
        self._logger.info(
            "%s of %s by %s: %s",
            action,
            target,
            actor,
            outcome,
            extra={
                "fields": {
                    "actor": actor,
                    "action": action,
                    "target": target,
                    "before": before,
                    "after": after,
                    "outcome": outcome,
                    "request_id": request_id,
                    "duration_seconds": round(duration, 6),
                }
            },
        )
