"""What all runs of a benchmark come to, as plain data: the JSON that it prints."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from mlxctl.bench.differences import compare_answers
from mlxctl.bench.figures import FIGURES, figures_of
from mlxctl.bench.memory import measure_of
from mlxctl.bench.plan import Plan
from mlxctl.bench.run import Run


def summarise(plan: Plan, runs: Sequence[Run], *, complete: bool) -> dict[str, Any]:
    """Figures and ratios of each scenario, failures, and whether answers were alike."""
    return {
        "plan": plan.as_dict(),
        "machine": machine(),
        "complete": complete,
        "scenarios": [_scenario(plan, name, runs) for name in plan.scenarios],
        "failures": [
            {
                "repeat": run.repeat,
                "scenario": run.scenario,
                "server": run.server,
                "what": run.failure,
                "log": run.log,
            }
            for run in runs
            if run.failure is not None
        ],
    }


def machine() -> dict[str, Any]:
    """What the figures depend on and a reader has to know."""
    import psutil

    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "memory_measure": measure_of(),
    }


def ratios(first: Sequence[Run], other: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """For each figure first / other of each repeat that both have: median, lowest, highest."""
    others = {run.repeat: figures_of(run) for run in other}
    pairs = [(figures_of(run), others[run.repeat]) for run in first if run.repeat in others]
    found = {}
    for figure in FIGURES:
        if not figure.better:
            continue
        values = [
            a[figure.name] / b[figure.name]  # type: ignore[operator]
            for a, b in pairs
            if a[figure.name] is not None and b[figure.name]
        ]
        if values:
            found[figure.name] = {**_spread(values), "better": figure.better}
    return found


def _scenario(plan: Plan, name: str, runs: Iterable[Run]) -> dict[str, Any]:
    mine = [run for run in runs if run.scenario == name and run.failure is None]
    by_server = {
        spec.name: [run for run in mine if run.server == spec.name] for spec in plan.servers
    }
    first, *others = (spec.name for spec in plan.servers)
    at_repeat = {run.repeat: run for run in by_server[first]}
    return {
        "name": name,
        "servers": {server: _figures(found) for server, found in by_server.items()},
        "ratios": {other: ratios(by_server[first], by_server[other]) for other in others},
        "answers": {
            other: compare_answers(
                [
                    (at_repeat[run.repeat], run)
                    for run in by_server[other]
                    if run.repeat in at_repeat
                ]
            ).as_dict()
            for other in others
        },
    }


def _figures(runs: Sequence[Run]) -> dict[str, Any]:
    all_figures = [figures_of(run) for run in runs]
    found: dict[str, Any] = {}
    for figure in FIGURES:
        values = [one[figure.name] for one in all_figures]
        known = [value for value in values if value is not None]
        found[figure.name] = _spread(known) if known else None
    rendered = [
        answer
        for run in runs
        for answer in run.answers
        if answer.rendered_tokens is not None and answer.prompt_tokens is not None
    ]
    return {
        "runs": len(runs),
        "figures": found,
        "rendered_otherwise": sum(a.rendered_tokens != a.prompt_tokens for a in rendered),
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
        "runs": len(values),
    }
