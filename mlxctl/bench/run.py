"""One run: one scenario against one server, once. What a record holds of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxctl.bench.answer import Answer

Key = tuple[int, str, str]
"""Repeat, scenario, server."""


@dataclass
class Run:
    """What came of it.

    ``failure`` is what went wrong, with the end of the server's ``log``; the rest is then what was
    seen until then. Memory is in bytes, ``memory_samples`` with seconds from the scenario's begin.
    ``told_before`` and ``told_after`` are what the server says of itself. Tokens: ``computed`` is
    what prompts had that was not cached, ``distinct`` what they have at least to be computed.
    """

    repeat: int
    scenario: str
    server: str
    wall: float = 0.0
    answers: list[Answer] = field(default_factory=list)
    memory_before: int | None = None
    memory_after: int | None = None
    memory_samples: list[tuple[float, int]] = field(default_factory=list)
    cpu_seconds: float | None = None
    told_before: dict[str, Any] = field(default_factory=dict)
    told_after: dict[str, Any] = field(default_factory=dict)
    tokens_distinct: int | None = None
    failure: str | None = None
    log: str = ""

    @property
    def key(self) -> Key:
        """What tells it from the other runs of a record."""
        return self.repeat, self.scenario, self.server

    def as_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            **vars(self),
            "answers": [answer.as_dict() for answer in self.answers],
            "memory_samples": [[round(at, 3), count] for at, count in self.memory_samples],
        }


def read_run(data: Mapping[str, Any]) -> Run:
    """A run from a record; raises TypeError or KeyError if it is none."""
    return Run(
        **{
            **data,
            "answers": [Answer(**answer) for answer in data["answers"]],
            "memory_samples": [(at, count) for at, count in data["memory_samples"]],
        }
    )
