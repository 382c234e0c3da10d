"""What has left a store lately, and why: for who asks where an entry has gone."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.radix import as_tokens
from mlxceld.prompt_cache.stored_prefix import StoredPrefix

Reason = Literal["lru", "ttl", "flush", "resize"]

KEPT = 256
"""How many departures are remembered, the newest."""

_FIRST_LENGTH = 32
_GROWTH = 1.25


@dataclass(frozen=True, slots=True)
class Departure:
    """An entry that is gone: how many of a prompt's tokens it had at least, and since when."""

    reason: Reason
    matched_tokens: int
    seconds_ago: float


@dataclass(frozen=True, slots=True)
class _Gone:
    bucket: Bucket
    reason: Reason
    at: float
    digests: tuple[tuple[int, bytes], ...]


class Departures:
    """Remembers entries by digests of their beginnings, not by their tokens: a few hundred bytes.

    The lengths whose digests are kept grow by a quarter, so a common beginning is known to a
    quarter of its length, and an entry that a prompt has whole exactly.
    """

    def __init__(self) -> None:
        self._gone: deque[_Gone] = deque(maxlen=KEPT)

    def note(self, entry: StoredPrefix, reason: Reason, now: float) -> None:
        """An entry leaves at ``now``, a reading of the store's clock in seconds."""
        data = as_tokens(entry.tokens).tobytes()
        width = len(data) // max(1, len(entry.tokens))
        digests, hashed, at = [], hashlib.blake2b(digest_size=8), 0
        for length in _lengths(len(entry.tokens)):
            hashed.update(data[at * width : length * width])
            at = length
            digests.append((length, hashed.copy().digest()))
        self._gone.append(_Gone(entry.bucket, reason, now, tuple(digests)))

    def nearest(self, bucket: Bucket, tokens: Sequence[int], now: float) -> Departure | None:
        """The newest of those departures that had most of a prompt's first tokens; None if none."""
        data = as_tokens(tokens).tobytes()
        width = len(data) // max(1, len(tokens))
        known: dict[int, bytes] = {}

        def has(length: int, digest: bytes) -> bool:
            if length > len(tokens):
                return False
            if length not in known:
                known[length] = hashlib.blake2b(data[: length * width], digest_size=8).digest()
            return known[length] == digest

        best: Departure | None = None
        for gone in reversed(self._gone):
            if gone.bucket != bucket:
                continue
            matched = 0
            for length, digest in gone.digests:
                if not has(length, digest):
                    break
                matched = length
            if matched and (best is None or matched > best.matched_tokens):
                best = Departure(gone.reason, matched, now - gone.at)
        return best


def _lengths(last: int) -> list[int]:
    lengths, length = [], float(_FIRST_LENGTH)
    while length < last:
        lengths.append(int(length))
        length *= _GROWTH
    return [*lengths, last]
