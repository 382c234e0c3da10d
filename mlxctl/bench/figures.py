"""The figures of a run, each None where it cannot be had."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mlxctl.bench.answer import Answer
from mlxctl.bench.run import Run


@dataclass(frozen=True)
class Figure:
    """One number of a run.

    ``unit`` is seconds, bytes, tokens, count, share, ratio or rate; ``better`` is less, more or
    nothing.
    """

    name: str
    label: str
    unit: str
    better: str
    value: Callable[[Run], float | None]


def figures_of(run: Run) -> dict[str, float | None]:
    """All figures of a run by name."""
    return {figure.name: figure.value(run) for figure in FIGURES}


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The smallest value that so many percent of all do not exceed; None of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else None


def inter_token_gaps(run: Run) -> list[float]:
    """Seconds between one text and the next of a stream.

    Where requests come in between, only those of the others that fall in the time in which the
    late ones' prompts are computed.
    """
    late = [answer for answer in run.answers if answer.late]
    early = [gap for answer in run.answers if not answer.late for gap in answer.gaps]
    if late:
        spans = [(one.sent, one.sent + (one.ttft or one.ended - one.sent)) for one in late]
        early = [
            (begin, end)
            for begin, end in early
            if any(begin < last and end > first for first, last in spans)
        ]
    return [end - begin for begin, end in early]


def _early(run: Run) -> list[Answer]:
    return [answer for answer in run.answers if not answer.late]


def _first_texts(answers: Iterable[Answer]) -> list[float]:
    return [answer.ttft for answer in answers if answer.ttft is not None]


def _sum(values: Sequence[int | None]) -> int | None:
    """None as soon as one is not told: half a sum is none."""
    known = [value for value in values if value is not None]
    return sum(known) if values and len(known) == len(values) else None


def _rate(run: Run) -> float | None:
    tokens = _sum([answer.completion_tokens for answer in run.answers])
    return tokens / run.wall if tokens and run.wall > 0 else None


def _decode_rate(run: Run) -> float | None:
    rates = [answer.decode_rate for answer in _early(run)]
    known = [rate for rate in rates if rate is not None]
    return statistics.median(known) if known else None


def _cached(run: Run) -> int | None:
    return _sum([answer.cached_tokens for answer in run.answers])


def _prompt(run: Run) -> int | None:
    return _sum([answer.prompt_tokens for answer in run.answers])


def _computed(run: Run) -> int | None:
    prompt, cached = _prompt(run), _cached(run)
    return None if prompt is None or cached is None else prompt - cached


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _peak(run: Run) -> int | None:
    return max((count for _, count in run.memory_samples), default=None)


def _added(run: Run) -> int | None:
    peak = _peak(run)
    return None if peak is None or run.memory_before is None else max(0, peak - run.memory_before)


def _background(run: Run) -> int | None:
    before = run.told_before.get("background_tokens")
    after = run.told_after.get("background_tokens")
    return None if before is None or after is None else after - before


def _without_text(run: Run) -> int | None:
    """Those have no time to a first token, so that the figures of times are of fewer answers."""
    return sum(answer.ttft is None for answer in run.answers) if run.answers else None


def _late_ttft(run: Run) -> float | None:
    return percentile(_first_texts(answer for answer in run.answers if answer.late), 50)


FIGURES = (
    Figure(
        "ttft_p50",
        "TTFT, median",
        "seconds",
        "less",
        lambda run: percentile(_first_texts(_early(run)), 50),
    ),
    Figure(
        "ttft_p95",
        "TTFT, p95",
        "seconds",
        "less",
        lambda run: percentile(_first_texts(_early(run)), 95),
    ),
    Figure(
        "ttft_max",
        "TTFT, longest",
        "seconds",
        "less",
        lambda run: percentile(_first_texts(_early(run)), 100),
    ),
    Figure("ttft_late", "TTFT of the long prompt", "seconds", "less", _late_ttft),
    Figure(
        "itl_p50",
        "inter-token latency, median",
        "seconds",
        "less",
        lambda run: percentile(inter_token_gaps(run), 50),
    ),
    Figure(
        "itl_p95",
        "inter-token latency, p95",
        "seconds",
        "less",
        lambda run: percentile(inter_token_gaps(run), 95),
    ),
    Figure(
        "itl_max",
        "inter-token latency, longest",
        "seconds",
        "less",
        lambda run: percentile(inter_token_gaps(run), 100),
    ),
    Figure("tokens_per_second", "tokens a second, all", "rate", "more", _rate),
    Figure("decode_rate", "tokens a second, a stream", "rate", "more", _decode_rate),
    Figure("wall", "wall", "seconds", "less", lambda run: run.wall if run.answers else None),
    Figure("prompt_tokens", "prompt tokens", "tokens", "", _prompt),
    Figure("cached_tokens", "cached tokens", "tokens", "", _cached),
    Figure(
        "cached_share",
        "cached share",
        "share",
        "more",
        lambda run: _share(_cached(run), _prompt(run)),
    ),
    Figure("tokens_computed", "tokens computed", "tokens", "less", _computed),
    Figure("tokens_distinct", "distinct tokens", "tokens", "", lambda run: run.tokens_distinct),
    Figure(
        "computed_to_distinct",
        "computed / distinct",
        "ratio",
        "less",
        lambda run: _share(_computed(run), run.tokens_distinct),
    ),
    Figure("background_tokens", "tokens computed ahead", "tokens", "", _background),
    Figure(
        "completion_tokens",
        "tokens generated",
        "tokens",
        "",
        lambda run: _sum([answer.completion_tokens for answer in run.answers]),
    ),
    Figure("without_text", "answers without text", "count", "", _without_text),
    Figure(
        "cpu_share",
        "processor, of one core",
        "share",
        "less",
        lambda run: _share(run.cpu_seconds, run.wall),
    ),
    Figure("memory_before", "memory before", "bytes", "less", lambda run: run.memory_before),
    Figure("memory_peak", "memory, peak", "bytes", "less", _peak),
    Figure("memory_after", "memory after", "bytes", "less", lambda run: run.memory_after),
    Figure("memory_added", "memory added at the peak", "bytes", "less", _added),
    Figure(
        "mlx_active",
        "MLX's active memory after",
        "bytes",
        "less",
        lambda run: run.told_after.get("mlx_active"),
    ),
    Figure(
        "mlx_peak",
        "MLX's peak memory so far",
        "bytes",
        "less",
        lambda run: run.told_after.get("mlx_peak"),
    ),
)
"""Every figure, in the order of the table."""

BY_NAME = {figure.name: figure for figure in FIGURES}
