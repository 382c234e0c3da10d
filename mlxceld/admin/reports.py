"""What a reload of the settings comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """What a reload came to, setting by setting, as plain values.

    ``applied`` and ``needs_restart`` tell before and after; ``refused`` why.
    """

    applied: dict[str, Any] = field(default_factory=dict)
    needs_restart: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class ReloadError(Exception):
    """Nothing was changed: the file, the keys or the tokens are not in order."""

    def __init__(self, text: str, problems: list[str]) -> None:
        super().__init__(text)
        self.problems = problems
