"""Why the cache said no, counted by reason."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mlxceld.prompt_cache.outcomes import Outcomes


class RejectReason(enum.StrEnum):
    """Every reason there is; each is one counter and one label value."""

    OVERSIZED = "oversized"
    DISABLED = "disabled"
    PREFIX_TOO_SHORT = "prefix_too_short"
    MODE_MISMATCH = "mode_mismatch"
    EMPTY_SET = "empty_set"
    LAYOUT_CONSTRAINTS = "layout_constraints"
    BLOCK_BOUNDARY_FLOOR = "block_boundary_floor"


@dataclass(frozen=True, slots=True)
class LastReject:
    """The newest refusal. ``seq_id`` is None where no sequence existed yet.

    ``context_len`` is the number of tokens donated, or of tokens matched when an adoption failed.
    """

    reason: RejectReason
    seq_id: int | None
    context_len: int
    at_unix_ms: int


class RejectLog:
    """Counts refusals of both stores; ``now_ms`` gives the wall clock in milliseconds.

    A request is refused at most once in each direction: what follows the first is not counted.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.outcomes = Outcomes()
        self._now_ms = now_ms
        self._counts = dict.fromkeys(RejectReason, 0)
        self._view = MappingProxyType(self._counts)
        self._newest: dict[RejectReason, LastReject] = {}
        self._last: LastReject | None = None
        self._insert_rejects = 0

    def record(
        self, reason: RejectReason, *, seq_id: int | None, context_len: int, donation: bool
    ) -> bool:
        """Count one refusal; ``donation`` tells a refused insert from a failed adoption.

        False, without effect, if this sequence has been refused in this direction already.
        """
        if not self.outcomes.declined(seq_id, reason.value, donation=donation):
            return False
        self._counts[reason] += 1
        self._insert_rejects += donation
        self._last = LastReject(reason, seq_id, context_len, self._now_ms())
        self._newest[reason] = self._last
        return True

    @property
    def counts(self) -> Mapping[RejectReason, int]:
        """How often each reason occurred; every reason is present."""
        return self._view

    @property
    def last(self) -> LastReject | None:
        """The newest refusal, None until the first."""
        return self._last

    @property
    def newest(self) -> dict[RejectReason, LastReject]:
        """The newest refusal for each reason that has occurred; a copy."""
        return dict(self._newest)

    @property
    def insert_rejects(self) -> int:
        """How many donations were declined, for any reason."""
        return self._insert_rejects
