"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until a stop string is met, and never lets out a part of one.

    Text that may yet turn out to be the start of a stop string is held back. Among stop strings
    met in one piece the one that starts first wins, then the one given first.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add text; return what may be shown. After a match everything is swallowed."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        self._held += text
        found = [
            (at, i) for i, stop in enumerate(self._stops) if (at := self._held.find(stop)) >= 0
        ]
        if found:
            at, which = min(found)
            self.matched = self._stops[which]
            shown, self._held = self._held[:at], ""
            return shown
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """No more text comes: return what was held back."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a true beginning of ``stop``."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
