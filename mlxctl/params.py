"""Sizes, durations and counts as click parameters, read as the daemon's settings are."""

from __future__ import annotations

from mlxceld.config.kinds import DurationKind, IntKind, SizeKind
from mlxceld.config.options import KindParam

SIZE = KindParam(SizeKind())
"""``8GiB``, ``8GB`` or plain bytes, as an integer of bytes."""

DURATION = KindParam(DurationKind())
"""``90s``, ``15m``, ``2h`` or plain seconds, as a number of seconds."""

COUNT = KindParam(IntKind(0, 10**9, zero_words=True))
"""A number of entries; ``off`` and ``never`` are 0."""
