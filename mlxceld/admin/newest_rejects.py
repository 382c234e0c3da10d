"""The newest refusal of every reason, as flat fields."""

from __future__ import annotations

from dataclasses import fields

from mlxceld.prompt_cache.rejects import RejectReason
from mlxceld.telemetry.status import EngineStatus, RejectStatus

_PARTS = tuple(field.name for field in fields(RejectStatus))


def newest_rejects(snapshot: EngineStatus) -> dict[str, int | None]:
    """``last_reject_REASON_seq_id``, ``..._context_len`` and ``..._at_unix_ms`` for each reason.

    All null until that reason has occurred.
    """
    return {
        f"last_reject_{reason}_{part}": getattr(snapshot.newest_rejects.get(reason), part, None)
        for reason in RejectReason
        for part in _PARTS
    }
