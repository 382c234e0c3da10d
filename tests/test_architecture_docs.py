"""The way of a request, as docs/architecture.md tells it, is the one in the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text()
HOP = re.compile(r"^\d+\. `([^`]+)`: `(\w+)`", re.MULTILINE)

DOWN, BACK = (HOP.findall(part) for part in TEXT.split("### Hop by hop")[1].split("\n\nAnd of")[:2])


def functions(path: Path) -> dict[str, list[ast.AST]]:
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.setdefault(node.name, []).append(node)
    return found


def names_in(node: ast.AST) -> set[str]:
    inner = list(ast.walk(node))
    names = {one.id for one in inner if isinstance(one, ast.Name)}
    return names | {one.attr for one in inner if isinstance(one, ast.Attribute)}


def reached(path: Path, name: str) -> set[str]:
    """What a function names, and those of its module that it calls."""
    known, seen, names = functions(path), set(), {name}
    while todo := (names & known.keys()) - seen:
        for one in todo:
            seen.add(one)
            for node in known[one]:
                names |= names_in(node)
    return names


def test_the_ways_are_short() -> None:
    assert 15 < len(DOWN) <= 22
    assert 10 < len(BACK) <= 16


@pytest.mark.parametrize(("module", "name"), [*DOWN, *BACK])
def test_each_hop_is_a_function_that_does_something(module: str, name: str) -> None:
    for node in functions(ROOT / "mlxceld" / module)[name]:
        body = [one for one in node.body if not _is_docstring(one)]
        if not (len(body) == 1 and _only_calls(body[0])):
            return
    pytest.fail("it only passes on")


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _only_calls(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Return | ast.Expr) and isinstance(statement.value, ast.Call)


# Where another thread or another class's method takes over, nobody calls it by name.
HANDED_OVER = {"post_messages", "_take_inbox", "step", "wait", "_take", "hand_over", "take"}


@pytest.mark.parametrize("hops", [DOWN, BACK], ids=["down", "back"])
def test_each_hop_is_called_by_one_before_it(hops: list[tuple[str, str]]) -> None:
    called: set[str] = set(HANDED_OVER)
    for module, name in hops:
        assert name in called, f"nothing before it calls {module}: {name}"
        called |= reached(ROOT / "mlxceld" / module, name)
