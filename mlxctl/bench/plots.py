"""Charts of a benchmark, as PNG and SVG: ratios, times to first token, memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxctl.bench.figures import BY_NAME
from mlxctl.bench.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RATIOS = (
    *("ttft_p50", "itl_p95", "decode_rate", "tokens_per_second", "wall", "memory_added"),
    "tokens_computed",
)
_COLUMNS = 3


def draw(summary: dict[str, Any], runs: Sequence[Run], folder: Path) -> list[Path]:
    """Write the charts that there is something for; returns their files."""
    written = []
    names = [spec["name"] for spec in summary["plan"]["servers"]]
    good = [run for run in runs if run.failure is None]
    for other in names[1:]:
        written += _save(_ratio_chart(summary, names[0], other), folder, f"ratios-{_file(other)}")
    written += _save(_ttft_chart(names, good), folder, "ttft")
    written += _save(_memory_chart(summary, names, good), folder, "memory")
    return written


def _ratio_chart(summary: dict[str, Any], first: str, other: str) -> Figure | None:
    """A panel a figure, a bar a scenario with its spread; what is better points to the right."""
    panels = []
    for name in _RATIOS:
        found = [
            (scenario["name"], scenario["ratios"][other][name])
            for scenario in summary["scenarios"]
            if name in scenario["ratios"][other] and scenario["ratios"][other][name]["lowest"] > 0
        ]
        if found:
            panels.append((name, found))
    if not panels:
        return None
    figure, axes = _grid(len(panels), 4.6, 0.9 + 0.3 * max(len(found) for _, found in panels))
    for ax, (name, found) in zip(axes, panels, strict=True):
        middle = [ratio["median"] for _, ratio in found]
        less = BY_NAME[name].better == "less"
        good = [(value < 1) is less or value == 1 for value in middle]
        places = range(len(found))
        ax.barh(
            places,
            [value - 1 for value in middle],
            left=1,
            color=["#4c8c6a" if one else "#c0604d" for one in good],
            height=0.6,
            xerr=[
                [m - ratio["lowest"] for m, (_, ratio) in zip(middle, found, strict=True)],
                [ratio["highest"] - m for m, (_, ratio) in zip(middle, found, strict=True)],
            ],
            error_kw={"ecolor": "#333333", "capsize": 2, "linewidth": 1},
        )
        ax.set_xscale("log")
        _plain_ticks(ax, [ratio[key] for _, ratio in found for key in ("lowest", "highest")])
        ax.axvline(1, color="#333333", linewidth=1)
        ax.set_yticks(places, [scenario for scenario, _ in found], fontsize=8)
        ax.invert_yaxis()
        ax.set_title(f"{BY_NAME[name].label} ({BY_NAME[name].better} is better)", fontsize=9)
    figure.suptitle(f"{first} / {other}: median of the repeats, lowest to highest", fontsize=11)
    return figure


def _plain_ticks(ax: Axes, values: Sequence[float]) -> None:
    """A few ratios as people write them, in place of powers of ten."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    low, high = min([*values, 1]) / 1.15, max([*values, 1]) * 1.15
    steps = [0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 100, 300, 1000]
    if high / low < 4:
        steps = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3]
    shown = [step for step in steps if low <= step <= high]
    ax.set_xlim(low, high)
    ax.xaxis.set_major_locator(FixedLocator(shown[:: -(-len(shown) // 7)] if shown else []))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.tick_params(axis="x", labelsize=8)


def _ttft_chart(names: Sequence[str], runs: Sequence[Run]) -> Figure | None:
    """A panel a scenario: how many of all requests had their first token after so long."""
    found = {
        scenario: {
            name: sorted(
                answer.ttft
                for run in runs
                if run.scenario == scenario and run.server == name
                for answer in run.answers
                if answer.ttft is not None
            )
            for name in names
        }
        for scenario in dict.fromkeys(run.scenario for run in runs if run.answers)
    }
    found = {name: servers for name, servers in found.items() if any(servers.values())}
    if not found:
        return None
    figure, axes = _grid(len(found), 3.6, 2.4)
    for ax, (scenario, servers) in zip(axes, found.items(), strict=True):
        for name, values in servers.items():
            if values:
                shares = [100 * (number + 1) / len(values) for number in range(len(values))]
                ax.step(values, shares, where="post", label=name, marker=".", markersize=4)
        ax.set_title(scenario, fontsize=9)
        ax.set_xlim(0, 1.05 * max(value for values in servers.values() for value in values))
        ax.set_ylim(0, 103)
        ax.tick_params(labelsize=8)
        ax.set_xlabel("seconds", fontsize=8)
        ax.set_ylabel("% of requests", fontsize=8)
    _legend(figure, axes)
    figure.suptitle("Time to first token, all repeats", fontsize=11)
    return figure


def _memory_chart(
    summary: dict[str, Any], names: Sequence[str], runs: Sequence[Run]
) -> Figure | None:
    """A panel a scenario: memory over time, one line a server, of the first repeat that has it."""
    found: dict[str, dict[str, Run]] = {}
    for run in runs:
        if run.memory_samples and run.memory_before is not None:
            found.setdefault(run.scenario, {}).setdefault(run.server, run)
    if not found:
        return None
    figure, axes = _grid(len(found), 3.6, 2.4)
    for ax, (scenario, servers) in zip(axes, found.items(), strict=True):
        for name in names:
            if (one := servers.get(name)) is not None:
                at = [seconds for seconds, _ in one.memory_samples]
                ax.plot(at, [count / 2**20 for _, count in one.memory_samples], label=name)
        ax.set_title(scenario, fontsize=9)
        ax.tick_params(labelsize=8)
        ax.set_xlabel("seconds", fontsize=8)
        ax.set_ylabel("MiB", fontsize=8)
    _legend(figure, axes)
    figure.suptitle(f"Memory ({summary['machine']['memory_measure']}), one repeat", fontsize=11)
    return figure


def _grid(panels: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, each of a size in inches."""
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.7), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, number + 1) for number in range(panels)]


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    labelled = {
        label: line
        for ax in axes
        for line, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(labelled.values()),
        list(labelled),
        loc="outside lower center",
        ncols=max(1, len(labelled)),
        fontsize=9,
    )


def _save(figure: Figure | None, folder: Path, name: str) -> list[Path]:
    if figure is None:
        return []
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    for file in files:
        figure.savefig(file, dpi=110)
    return files


def _file(name: str) -> str:
    """A server's name as a part of a file's."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
