"""How many prompt tokens one prefill chunk may take."""

from __future__ import annotations

_SLOW_SECONDS = 0.25
"""A chunk that takes longer while a stream runs is felt by its reader."""

_QUICK_SECONDS = 0.8 * _SLOW_SECONDS

_FIXED_COSTS = 1.25
"""How many more tokens than in proportion a quick chunk is taken to have room for."""

_SMALLEST = 32
"""Below this a chunk's fixed costs outweigh its tokens."""


class ChunkSize:
    """The prefill chunk: a ceiling, and beside running streams what takes less than 250 ms.

    It follows the newest chunk's tokens a second, by half or double at most at once. Without
    running streams nobody waits for a chunk, and the ceiling holds.
    """

    def __init__(self, ceiling: int, *, fixed: bool = False) -> None:
        """``fixed``: chunks are always of ``ceiling`` tokens, and only the last one is shorter."""
        self._ceiling = ceiling
        self._fixed = fixed
        self._beside_streams = ceiling
        self.longest_seconds = 0.0

    def size(self, *, streams_running: bool) -> int:
        """Tokens that the next chunk may take, padding included."""
        return self._beside_streams if streams_running and not self._fixed else self._ceiling

    def part_of(self, tokens: int, most: int) -> int:
        """How many of ``tokens`` the next chunk takes where it may take ``most``."""
        return min(tokens, most) if self._fixed else part_of(tokens, most)

    def record(self, tokens: int, seconds: float, *, streams_running: bool) -> None:
        """Learn from a chunk that was run: its padded tokens and its wall time."""
        if not streams_running:
            return
        self.longest_seconds = max(self.longest_seconds, seconds)
        now = self._beside_streams
        if tokens <= now // 2:
            return  # mostly the fixed costs of a chunk
        fitting = tokens * _SLOW_SECONDS / max(seconds, 1e-9)
        if seconds > _SLOW_SECONDS:
            floor = min(_SMALLEST, self._ceiling)
            self._beside_streams = max(floor, now // 2, min(now, int(fitting)))
        elif seconds < _QUICK_SECONDS:
            grown = min(self._ceiling, now * 2, int(fitting * _FIXED_COSTS))
            self._beside_streams = max(now, grown)


def part_of(tokens: int, most: int) -> int:
    """How many of ``tokens`` the next chunk takes where it may take ``most``.

    As few chunks as that needs, of equal size: a small rest would cost nearly a whole chunk's time.
    """
    chunks = -(-tokens // most)
    return -(-tokens // chunks) if chunks else 0
