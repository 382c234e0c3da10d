"""What a check is given, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxctl.context import Ctl
from mlxctl.errors import CtlError


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``level`` is ok, note, slow, wrong or unknown; ``fix`` what to do."""

    check: str
    level: str
    text: str
    fix: str = ""


@dataclass(slots=True)
class Scene:
    """What the checks look at: the daemon's own word, None where none answers."""

    ctl: Ctl
    settings: Any
    state_dir: Path
    status: dict[str, Any] | None
    stats: dict[str, Any] | None
    unreachable: CtlError | None


Check = Callable[[Scene], Iterator[Finding]]
"""One thing to look at; the name is that of what it finds, after ``check_``."""
