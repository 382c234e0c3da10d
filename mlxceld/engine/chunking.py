"""How many prompt tokens one prefill chunk may take."""

from __future__ import annotations

_SLOW_SECONDS = 0.25
"""A chunk that takes longer while a stream runs is felt by its reader."""

_SMALLEST = 32
"""Below this a chunk's fixed costs outweigh its tokens."""


class ChunkSize:
    """The prefill chunk: a ceiling, halved while streams run and chunks take too long.

    Without running streams nobody waits for a chunk, and the ceiling holds.
    """

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self._beside_streams = ceiling
        self.longest_seconds = 0.0

    def size(self, *, streams_running: bool) -> int:
        """Tokens that the next chunk may take, padding included."""
        return self._beside_streams if streams_running else self._ceiling

    def record(self, tokens: int, seconds: float, *, streams_running: bool) -> None:
        """Learn from a chunk that was run: its padded tokens and its wall time."""
        if not streams_running:
            return
        self.longest_seconds = max(self.longest_seconds, seconds)
        if seconds > _SLOW_SECONDS and tokens > self._beside_streams // 2:
            floor = min(_SMALLEST, self._ceiling)
            self._beside_streams = max(floor, self._beside_streams // 2)
        elif seconds < _SLOW_SECONDS / 3 and tokens >= self._beside_streams:
            self._beside_streams = min(self._ceiling, self._beside_streams * 2)
