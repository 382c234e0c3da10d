from __future__ import annotations

from itertools import combinations
from typing import Any

from mlxceld.models.signature import template_signature

TOOL_A = {"type": "function", "function": {"name": "a", "parameters": {"x": 1, "y": 2}}}
TOOL_B = {"type": "function", "function": {"name": "b"}}


def sign(source: str = "template", **changes: Any) -> str:
    arguments: dict[str, Any] = {"tools": None, "tool_choice": None, "template_kwargs": None}
    return template_signature(source, **(arguments | changes))


def test_every_part_counts() -> None:
    signatures = [
        sign(),
        sign("other"),
        sign(tools=[TOOL_A]),
        sign(tools=[TOOL_A, TOOL_B]),
        sign(tools=[TOOL_B, TOOL_A]),
        sign(tool_choice="auto"),
        sign(tool_choice="none"),
        sign(tool_choice={"type": "function", "function": {"name": "a"}}),
        sign(template_kwargs={"enable_thinking": True}),
        sign(template_kwargs={"enable_thinking": False}),
        sign(template_kwargs={"enable_thinking": "True"}),
    ]
    assert all(one != other for one, other in combinations(signatures, 2))
    assert all(len(one) == 64 and int(one, 16) >= 0 for one in signatures)


def test_what_does_not_change_the_rendering_does_not_count() -> None:
    reordered = {"function": {"parameters": {"y": 2, "x": 1}, "name": "a"}, "type": "function"}
    assert sign(tools=[TOOL_A]) == sign(tools=[reordered])
    assert sign() == sign(tools=[], template_kwargs={})
    assert sign(template_kwargs={"a": 1, "b": 2}) == sign(template_kwargs={"b": 2, "a": 1})


def test_fields_do_not_run_into_each_other() -> None:
    assert sign("a{}", template_kwargs={}) != sign("a", template_kwargs={})
    assert sign("x", tool_choice="ab") != sign("xa", tool_choice="b")


def test_it_is_stable_between_versions() -> None:
    # A changed value makes every stored prefix useless; the domain string then changes with it.
    assert sign() == "35e6e979222ddff890c67c8edd61424fc185cd979a0a22fc19e289f4bf223445"


def test_lone_surrogates_and_odd_values_are_no_fault() -> None:
    assert sign("\ud800") != sign("\ud801")
    assert sign(template_kwargs={"x": {1}}) == sign(template_kwargs={"x": {1}})
