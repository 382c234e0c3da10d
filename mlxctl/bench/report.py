"""The summary for people: tables for the terminal, and Markdown without an absolute time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mlxctl import tables
from mlxctl.bench.figures import BY_NAME, FIGURES

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHOWN_DIFFERENCES = 3
"""Of each scenario; the JSON has all."""

_IN_MARKDOWN = (
    *("ttft_p50", "ttft_p95", "itl_p95", "decode_rate", "tokens_per_second", "wall"),
    *("memory_added", "memory_peak"),
)


def report(summary: dict[str, Any]) -> RenderableType:
    """Everything as tables, one a scenario."""
    from rich.console import Group

    parts: list[RenderableType] = []
    for scenario in summary["scenarios"]:
        parts += [tables.section(scenario["name"]), _table(scenario), *_remarks(scenario), ""]
    parts += _failures(summary)
    if any(spec["kind"] == "url" for spec in summary["plan"]["servers"]):
        parts.append(
            "A server that runs already is not started anew for each scenario: what it has cached"
            " stays, and its memory is not looked at."
        )
    measure = summary["machine"]["memory_measure"]
    parts.append(f"Medians of the repeats, (lowest to highest). Memory is the {measure}.")
    return Group(*parts)


def markdown(summary: dict[str, Any]) -> str:
    """Ratios and counts as Markdown tables; nothing in them belongs to one machine's speed."""
    names = [spec["name"] for spec in summary["plan"]["servers"]]
    sizes = summary["plan"]["sizes"]
    first, *others = names
    machine = summary["machine"]
    lines = [
        f"{machine['system']} {machine['machine']}, {machine['cores']} cores,"
        f" {tables.size_text(machine['memory_bytes'])} of memory; memory is the"
        f" {machine['memory_measure']}. {summary['plan']['repeats']} repeats,"
        f" {sizes['prefix_tokens']} prefix tokens, {sizes['sharers']} sharers,"
        f" {sizes['turns']} turns, {sizes['prompts']} prompts."
    ]
    for other in others:
        lines += [
            "",
            f"`{first}` / `{other}`, median (lowest to highest); less or more is better:",
            "",
        ]
        heads = [f"{BY_NAME[name].label} ({BY_NAME[name].better})" for name in _IN_MARKDOWN]
        lines.append(f"| scenario | {' | '.join(heads)} |")
        lines.append("|---" * (len(heads) + 1) + "|")
        for scenario in summary["scenarios"]:
            found = scenario["ratios"][other]
            cells = [_ratio(found[name]) if name in found else "-" for name in _IN_MARKDOWN]
            lines.append(f"| {scenario['name']} | {' | '.join(cells)} |")
    head = " | ".join(f"`{name}` | cached" for name in names)
    lines += ["", "Tokens computed / distinct tokens, and the share of prompt tokens cached:", ""]
    lines += [f"| scenario | distinct | {head} |", "|---" * (2 * len(names) + 2) + "|"]
    for scenario in summary["scenarios"]:
        figures = [scenario["servers"][name]["figures"] for name in names]
        if all(one["prompt_tokens"] is None for one in figures):
            continue
        cells = [_cell("tokens_distinct", figures[0]["tokens_distinct"])]
        for one in figures:
            cells.append(_cell("computed_to_distinct", one["computed_to_distinct"]))
            cells.append(_cell("cached_share", one["cached_share"]))
        lines.append(f"| {scenario['name']} | {' | '.join(cells)} |")
    for other in others:
        answers = [scenario["answers"][other] for scenario in summary["scenarios"]]
        alike, compared = (sum(one[key] for one in answers) for key in ("alike", "compared"))
        lines += ["", f"Answers of `{first}` and `{other}` alike: {alike} of {compared}."]
    if summary["failures"]:
        lines += ["", f"Failed runs: {len(summary['failures'])}."]
    return "\n".join(lines) + "\n"


def _table(scenario: dict[str, Any]) -> RenderableType:
    servers = scenario["servers"]
    first = next(iter(servers))
    headers = ["FIGURE", *(f"{name.upper()}>" for name in servers)]
    headers += [f"{first} / {other}>" for other in scenario["ratios"]]
    headers += ["BETTER"] if scenario["ratios"] else []
    rows = []
    for figure in FIGURES:
        found = [one["figures"][figure.name] for one in servers.values()]
        if all(one is None for one in found):
            continue
        row = [figure.label, *(_cell(figure.name, one) for one in found)]
        row += [
            _ratio(ratio[figure.name]) if figure.name in ratio else "-"
            for ratio in scenario["ratios"].values()
        ]
        rows.append([*row, figure.better] if scenario["ratios"] else row)
    return tables.listing(headers, rows)


def _remarks(scenario: dict[str, Any]) -> Iterator[str]:
    first = next(iter(scenario["servers"]))
    for name, one in scenario["servers"].items():
        if one["rendered_otherwise"]:
            yield (
                f"{name}: {one['rendered_otherwise']} prompts have another number of tokens than"
                " this side renders; distinct tokens are of the latter"
            )
    for other, answers in scenario["answers"].items():
        if not answers["compared"]:
            continue
        spaces = sum(one["only_leading_space"] for one in answers["differences"])
        yield f"answers alike, {first} and {other}: {answers['alike']} of {answers['compared']}" + (
            f"; {spaces} differ only by white space at their beginning" if spaces else ""
        )
        for one in answers["differences"][:_SHOWN_DIFFERENCES]:
            after = "; an earlier turn differs too" if one["follows"] else ""
            yield (
                f"  repeat {one['repeat'] + 1}, conversation {one['conversation']},"
                f" turn {one['turn']}, from character {one['at']}:"
                f" {one['first']!r} and {one['other']!r}{after}"
            )
        hidden = len(answers["differences"]) - _SHOWN_DIFFERENCES
        if hidden > 0:
            yield f"  {hidden} more differ; the JSON has all of them"


def _failures(summary: dict[str, Any]) -> Iterator[RenderableType]:
    if not summary["failures"]:
        return
    yield tables.section("FAILED RUNS")
    shown: set[tuple[str, str]] = set()
    for one in summary["failures"]:
        yield f"{one['server']}, {one['scenario']}, repeat {one['repeat'] + 1}: {one['what']}"
        if one["log"] and (one["server"], one["what"]) not in shown:
            yield "\n".join(f"    {line}" for line in one["log"].splitlines())
        shown.add((one["server"], one["what"]))
    yield ""


def _cell(name: str, spread: dict[str, Any] | None) -> str:
    """A median with its spread, where it has one."""
    if spread is None:
        return "-"
    unit = BY_NAME[name].unit
    low, middle, high = (_text(unit, spread[key]) for key in ("lowest", "median", "highest"))
    return middle if low == high else f"{middle} ({low} to {high})"


def _ratio(ratio: dict[str, Any]) -> str:
    low, middle, high = (f"{ratio[key]:.3g}" for key in ("lowest", "median", "highest"))
    return middle if low == high else f"{middle} ({low} to {high})"


def _text(unit: str, value: float) -> str:
    if unit == "seconds":
        return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"
    if unit == "bytes":
        return tables.size_text(round(value))
    if unit == "share":
        return f"{100 * value:.1f}%"
    if unit == "ratio":
        return f"{value:.3f}"
    return f"{value:.1f}" if unit == "rate" else tables.count_text(round(value))
