"""Fields that a vendor's API has and this server does not honour: what becomes of each.

What carries or replaces a part of the conversation, or asks for another kind of answer, is refused
by name. What only adds to an answer is skipped with a note. What cannot change an answer is
ignored. Fields that no vendor's SDK knows are ignored as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxceld.api.body import describe
from mlxceld.api.errors import invalid
from mlxceld.api.notes import Notes


def _never(value: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Rule:
    """``why`` completes a sentence about the field; values for which ``idle`` holds ask nothing.

    Null always passes.
    """

    why: str
    idle: Callable[[Any], bool] = _never


def empty(value: Any) -> bool:
    """Whether a value asks for nothing: false, an empty list, object or text."""
    return value is False or value in ([], {}, "")


def one_of(*values: Any) -> Callable[[Any], bool]:
    """Whether a value is one of those that this server acts by anyway."""
    return lambda value: value in values


@dataclass(frozen=True, slots=True)
class FieldTable:
    """One dialect's fields besides those that its request model honours."""

    refused: Mapping[str, Rule] = field(default_factory=dict)
    skipped: Mapping[str, Rule] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()

    def check(self, body: Mapping[str, Any], notes: Notes) -> None:
        """Refuse or note what a body carries of these; raises a 400 ApiError."""
        for name, rule in self.refused.items():
            value = body.get(name)
            if value is not None and not rule.idle(value):
                raise invalid(name, f"{name} is {describe(value)}, {rule.why}")
        for name, rule in self.skipped.items():
            value = body.get(name)
            if value is not None and not rule.idle(value):
                notes.skip(name, rule.why)
