"""Lines that some clients put first in the system text and change with every request.

With such a line in front no prompt has a beginning in common with the one before it. The lines
say nothing to a model, so they are dropped before rendering (setting ``volatile_heads``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

VOLATILE_HEADS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("x-anthropic-billing-header", re.compile(r"x-anthropic-billing-header:[^\n]*(?:\n+|\Z)")),
)
"""The names of the known lines, and how they look at the very beginning of the system text."""


def drop_volatile_head(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], str | None]:
    """Messages without a volatile first line of the system text, and the line's name if one was.

    A part of a content list that held nothing else goes with its line.
    """
    changed = [dict(message) for message in messages]
    if not changed or changed[0].get("role") not in ("system", "developer"):
        return changed, None
    content = changed[0].get("content")
    parts = content if isinstance(content, list) else None
    first = parts[0].get("text") if parts else content
    if not isinstance(first, str):
        return changed, None
    for name, pattern in VOLATILE_HEADS:
        if match := pattern.match(first):
            rest = first[match.end() :]
            if parts is None:
                changed[0]["content"] = rest
            elif rest:
                changed[0]["content"] = [{**parts[0], "text": rest}, *parts[1:]]
            else:
                changed[0]["content"] = parts[1:] or ""
            return changed, name
    return changed, None
