"""What goes into the engine is plain data: it could be written down and read again elsewhere."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest

from mlxceld.engine import commands, request
from mlxceld.engine.commands import Command
from mlxceld.engine.request import GenerationRequest, NextTurn
from mlxceld.models import boundaries
from mlxceld.prompt_cache.reports import BudgetChange

PLAIN = {str, int, float, bool, bytes, type(None)}
HOLDERS = {list, tuple, dict, frozenset, Sequence, Mapping}
# What annotations name that is only imported for the type checker.
NAMES = {**vars(boundaries), **vars(request), **vars(commands), "BudgetChange": BudgetChange}


def not_plain(kind: Any, where: str) -> list[str]:
    """The fields of a type that hold something else than plain data."""
    if kind in PLAIN or kind is Any:
        # Any stands in the messages and tools of a conversation: what JSON has.
        return []
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return []
    if origin in (typing.Union, types.UnionType) or origin in HOLDERS:
        inner = [one for one in arguments if one is not Ellipsis]
        return [found for one in inner for found in not_plain(one, where)]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return []
    if dataclasses.is_dataclass(kind):
        frozen = kind.__dataclass_params__.frozen  # type: ignore[union-attr]
        hints = typing.get_type_hints(kind, NAMES)
        found = [] if frozen else [f"{where}: {kind} can be changed"]
        for name in (field.name for field in dataclasses.fields(kind)):
            found += not_plain(hints[name], f"{where}.{name}")
        return found
    return [f"{where}: {kind}"]


@pytest.mark.parametrize("kind", [GenerationRequest, NextTurn, *typing.get_args(Command)])
def test_it_is_plain_data(kind: type) -> None:
    assert not_plain(kind, kind.__name__) == []


def test_a_closure_would_be_found() -> None:
    @dataclasses.dataclass(frozen=True)
    class Bad:
        ask: typing.Callable[[int], int] | None
        inner: tuple[set[int], ...]

    NAMES["typing"] = typing
    assert len(not_plain(Bad, "Bad")) == 2


def test_every_command_is_carried_out() -> None:
    made = {
        kind
        for kind in vars(commands).values()
        if dataclasses.is_dataclass(kind) and kind.__module__ == commands.__name__
    }
    assert made == set(typing.get_args(Command))
