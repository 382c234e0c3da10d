"""The page on benchmarks and the command's defaults are what the code has."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import click

from mlxctl.bench.figures import FIGURES
from mlxctl.bench.names import SCENARIOS
from mlxctl.bench.plan import Plan, ServerSpec, Sizes
from mlxctl.commands.bench import bench

PAGE = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text()
DEFAULTS = {param.name: param.default for param in bench.commands["compare"].params}


def cells(title: str) -> list[str]:
    """The first cells of a section's table."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found
    return re.findall(r"^\| (?!---)([^|]+?) \|", found.group(1), re.M)[1:]


def test_every_scenario_is_described_in_its_order():
    assert re.findall(r"`(\w+)`", " ".join(cells("Scenarios"))) == list(SCENARIOS)


def test_every_figure_is_described_under_its_name():
    told = [name for cell in cells("Figures") for name in cell.split("; ")]
    assert sorted(told) == sorted(figure.label for figure in FIGURES)


def test_the_defaults_are_those_of_the_plan():
    sizes = asdict(Sizes())
    assert DEFAULTS["idle"] == sizes.pop("idle_seconds")
    assert {name: DEFAULTS[name] for name in sizes} == sizes
    plan = Plan(None, (ServerSpec("a", "url"),), (), Sizes())
    assert (DEFAULTS["repeats"], DEFAULTS["seed"]) == (plan.repeats, plan.seed)
    assert DEFAULTS["settle"] == plan.settle_seconds
    for number in (sizes["prefix_tokens"], sizes["decode_tokens"]):
        assert str(number) in PAGE


def test_the_manual_tells_the_same_defaults():
    manual = (Path(__file__).parents[3] / "docs" / "mlxctl.md").read_text()
    for param in bench.commands["compare"].params:
        if isinstance(param, click.Option) and isinstance(param.type, click.IntRange):
            assert f"| `{param.opts[0]} N` |" in manual
            line = next(one for one in manual.split("\n") if f"`{param.opts[0]} N`" in one)
            assert line.endswith(f"default: {param.default} |"), line
