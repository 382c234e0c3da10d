"""Lines that change with every request, in front of the system text."""

from __future__ import annotations

from typing import Any

import pytest

from mlxceld.models.volatile import drop_volatile_head

LINE = "x-anthropic-billing-header: cc_version=2.1.36; cch=5f2a1;"


def system(content: Any) -> list[dict[str, Any]]:
    return [{"role": "system", "content": content}, {"role": "user", "content": "Hi"}]


def part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (f"{LINE}\n\nYou are a coder.", "You are a coder."),
        (LINE, ""),
        ([part(LINE), part("You are a coder.")], [part("You are a coder.")]),
        ([part(f"{LINE}\nYou are"), part("a coder.")], [part("You are"), part("a coder.")]),
        ([part(LINE)], ""),
    ],
)
def test_the_line_is_dropped(content: Any, left: Any) -> None:
    messages, name = drop_volatile_head(system(content))
    assert name == "x-anthropic-billing-header"
    assert messages == system(left)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        system("You are a coder."),
        system(f"You are a coder.\n{LINE}"),
        system([]),
        system(None),
        [{"role": "user", "content": LINE}],
    ],
)
def test_nothing_else_is(messages: list[dict[str, Any]]) -> None:
    assert drop_volatile_head(messages) == (messages, None)
