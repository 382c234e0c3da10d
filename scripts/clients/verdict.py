"""What came of one case of one client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """``outcome`` is "ok", "skipped" or what went wrong; ``share`` what came from the cache."""

    client: str
    version: str
    model: str
    case: str
    outcome: str = "ok"
    share: float | None = None

    def failed(self, least: float) -> bool:
        """Whether it went wrong, or read less of the cache than ``least``."""
        if self.outcome == "skipped":
            return False
        return self.outcome != "ok" or (self.share is not None and self.share < least)

    def line(self, least: float) -> str:
        """One line of the table."""
        share = "" if self.share is None else f"  {100 * self.share:.1f}% cached"
        word = "FAILED" if self.failed(least) else self.outcome
        why = f": {self.outcome}" if word == "FAILED" and self.outcome != "ok" else ""
        return f"{self.client} {self.version} | {self.model} | {self.case} | {word}{share}{why}"
