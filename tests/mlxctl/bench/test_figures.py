"""The figures of a run, and what they are not where something is not told."""

from __future__ import annotations

from typing import Any

import pytest

from mlxctl.bench.answer import Answer
from mlxctl.bench.figures import figures_of, inter_token_gaps, percentile
from mlxctl.bench.run import Run


def answer(conversation: int = 0, **fields: Any) -> Answer:
    counts = {"prompt_tokens": 100, "completion_tokens": 3, "cached_tokens": 60}
    return Answer(conversation, 0, **{"arrivals": [1.0, 1.5, 2.0], **counts, **fields})


def run_of(*answers: Answer, **fields: Any) -> Run:
    return Run(0, "seqshare", "mlxceld", wall=4.0, answers=list(answers), **fields)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([], 50, None),
        ([3.0], 95, 3.0),
        ([1, 2, 3, 4], 50, 2),
        (range(1, 101), 95, 95),
        ([2, 1], 100, 2),
    ],
)
def test_percentiles_are_values_that_were_seen(values, percent, expected):
    assert percentile(values, percent) == expected


def test_times_rates_and_tokens():
    figures = figures_of(run_of(answer(), answer(1, arrivals=[2.0, 4.0]), tokens_distinct=80))
    assert (figures["ttft_p50"], figures["ttft_max"]) == (1.0, 2.0)
    assert (figures["itl_p50"], figures["itl_max"]) == (0.5, 2.0)
    assert (figures["tokens_per_second"], figures["decode_rate"]) == (1.5, 1.5)
    assert (figures["cached_tokens"], figures["cached_share"]) == (120, 0.6)
    assert (figures["tokens_computed"], figures["computed_to_distinct"]) == (80, 1.0)


def test_an_answer_without_text_has_no_time_and_is_counted():
    figures = figures_of(run_of(answer(), answer(1, arrivals=[], completion_tokens=0)))
    assert (figures["without_text"], figures["ttft_p50"]) == (1, 1.0)
    assert figures_of(run_of(answer()))["without_text"] == 0
    assert figures_of(run_of())["without_text"] is None


def test_half_a_sum_is_none():
    figures = figures_of(run_of(answer(), answer(1, cached_tokens=None), tokens_distinct=80))
    missing = ("cached_tokens", "cached_share", "tokens_computed", "computed_to_distinct")
    assert {figures[name] for name in missing} == {None}
    assert figures["prompt_tokens"] == 200


def test_beside_a_long_prompt_only_the_gaps_while_it_is_computed_count():
    short = answer(arrivals=[0.5, 1.0, 1.6, 3.5, 9.0])
    long = answer(1, late=True, sent=1.2, arrivals=[2.0, 2.1])
    run = run_of(short, long)
    # The prompt is computed from 1.2 to 3.2.
    assert inter_token_gaps(run) == pytest.approx([0.6, 1.9])
    assert figures_of(run)["ttft_late"] == 2.0
    assert figures_of(run)["ttft_p50"] == 0.5


def test_memory_is_what_was_added_at_the_peak():
    run = run_of(memory_before=100, memory_samples=[(0.0, 100), (0.2, 250), (0.4, 130)])
    figures = figures_of(run)
    assert (figures["memory_peak"], figures["memory_added"]) == (250, 150)
    assert figures_of(run_of())["memory_added"] is None


def test_what_the_server_tells_of_itself():
    before, after = {"background_tokens": 5}, {"background_tokens": 12, "mlx_peak": 7}
    figures = figures_of(run_of(told_before=before, told_after=after, cpu_seconds=1.0))
    assert (figures["background_tokens"], figures["mlx_peak"], figures["mlx_active"]) == (
        7,
        7,
        None,
    )
    assert figures["cpu_share"] == 0.25
    assert figures_of(run_of())["background_tokens"] is None
