"""What kinds of caches there are, which decides how a model's past can be reused."""

from __future__ import annotations

import enum


class CacheKind(enum.StrEnum):
    """How a layer remembers.

    *Pageable* keeps every token's keys and values, so any prefix can be taken from it; *windowed*
    keeps the newest ones only; *recurrent* keeps one state that has read everything; *composite*
    holds several caches of different kinds; *opaque* is a class of the model's own.
    """

    PAGEABLE = "pageable"
    WINDOWED = "windowed"
    RECURRENT = "recurrent"
    COMPOSITE = "composite"
    OPAQUE = "opaque"
