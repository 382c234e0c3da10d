"""Ratios with their spread, differences of answers, and how both are shown."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.console import Console

from mlxctl.bench.answer import Answer
from mlxctl.bench.plan import Plan, ServerSpec, Sizes
from mlxctl.bench.plots import draw
from mlxctl.bench.report import markdown, report
from mlxctl.bench.run import Run
from mlxctl.bench.summary import ratios, summarise

A, B = ServerSpec("ours", "mlxceld"), ServerSpec("mlx_lm.server", "mlx_lm.server")
PLAN = Plan("/m", (A, B), ("idle", "seqshare"), Sizes(), repeats=3)


def run_of(server: str, repeat: int, seconds: float, text: str = "one two", **fields: Any) -> Run:
    answer = Answer(
        0,
        0,
        arrivals=[seconds, 2 * seconds],
        text=text,
        prompt_tokens=100,
        rendered_tokens=100,
        completion_tokens=2,
        cached_tokens=50,
    )
    given = {"memory_before": 2**20, "memory_samples": [(0.0, 2**20), (1.0, 3 * 2**20)], **fields}
    return Run(repeat, "seqshare", server, 3 * seconds, [answer], tokens_distinct=50, **given)


OURS = [run_of("ours", repeat, 1.0) for repeat in range(3)]
PEERS = [run_of("mlx_lm.server", repeat, seconds) for repeat, seconds in enumerate((2.0, 4.0, 5.0))]


def test_a_ratio_is_the_median_of_the_repeats_ratios():
    found = ratios(OURS, PEERS)
    assert found["ttft_p50"] == {
        **{"median": 0.25, "lowest": 0.2, "highest": 0.5, "runs": 3},
        "better": "less",
    }
    assert found["decode_rate"]["median"] == 4.0
    assert found["decode_rate"]["better"] == "more"
    assert "prompt_tokens" not in found


def test_only_repeats_that_both_have_are_paired():
    assert ratios(OURS[1:], PEERS[:2])["wall"]["runs"] == 1
    assert ratios(OURS[:1], PEERS[1:]) == {}


@pytest.fixture
def failed_summary() -> dict[str, Any]:
    bad = Run(2, "seqshare", "mlx_lm.server", failure="it died", log="Killed")
    return summarise(PLAN, [*OURS, *PEERS[:2], bad], complete=False)


def text_of(summary: dict[str, Any]) -> str:
    console = Console(width=200, record=True, force_terminal=False, file=None, quiet=False)
    with console.capture() as captured:
        console.print(report(summary))
    return captured.get()


def test_failures_are_told_with_their_logs_end(failed_summary):
    assert failed_summary["complete"] is False
    (failure,) = failed_summary["failures"]
    assert failure["what"] == "it died"
    text = text_of(failed_summary)
    assert "mlx_lm.server, seqshare, repeat 3: it died" in text
    assert "    Killed" in text
    seqshare = failed_summary["scenarios"][1]
    assert seqshare["servers"]["mlx_lm.server"]["runs"] == 2
    assert seqshare["ratios"]["mlx_lm.server"]["ttft_p50"]["runs"] == 2
    assert "Failed runs: 1." in markdown(failed_summary)


def test_the_table_has_both_sides_and_the_direction():
    text = text_of(summarise(PLAN, [*OURS, *PEERS], complete=True))
    assert re.search(
        r"TTFT, median +1\.00 s +4\.00 s \(2\.00 s to 5\.00 s\) +0\.25 \(0\.2 to 0\.5\)  less", text
    )
    assert "computed / distinct" in text
    assert "FAILED" not in text


def test_markdown_has_ratios_and_counts_and_no_time():
    text = markdown(summarise(PLAN, [*OURS, *PEERS], complete=True))
    assert "| scenario | TTFT, median (less) | TTFT, p95 (less) |" in text
    assert "| seqshare | 0.25 (0.2 to 0.5) | 0.25 (0.2 to 0.5) |" in text
    assert "| seqshare | 50 | 1.000 | 50.0% | 1.000 | 50.0% |" in text
    assert not re.search(r"\d (s|ms)\b", text)


def test_answers_are_compared_and_shown_where_they_part():
    other = [
        run_of("mlx_lm.server", 0, 1.0),
        run_of("mlx_lm.server", 1, 1.0, text="one too"),
        run_of("mlx_lm.server", 2, 1.0, text=" one two"),
    ]
    summary = summarise(PLAN, [*OURS, *other], complete=True)
    answers = summary["scenarios"][1]["answers"]["mlx_lm.server"]
    assert (answers["compared"], answers["alike"]) == (3, 1)
    first, second = answers["differences"]
    assert (first["at"], first["first"], first["other"]) == (5, "one two", "one too")
    assert (first["only_leading_space"], second["only_leading_space"]) == (False, True)
    text = text_of(summary)
    assert "alike, ours and mlx_lm.server: 1 of 3; 1 differ only by white space" in text
    assert "from character 5: 'one two' and 'one too'" in text


def test_prompts_that_a_server_renders_otherwise_are_told():
    odd = run_of("ours", 0, 1.0)
    odd.answers[0].prompt_tokens = 101
    text = text_of(summarise(PLAN, [odd], complete=False))
    assert "ours: 1 prompts have another number of tokens" in text


def test_one_server_has_no_ratios():
    plan = Plan("/m", (A,), ("seqshare",), Sizes(), repeats=3)
    summary = summarise(plan, OURS, complete=True)
    assert summary["scenarios"][0]["ratios"] == {}
    assert "BETTER" not in text_of(summary)
    assert "| seqshare | 50 | 1.000 | 50.0% |" in markdown(summary)


def test_charts_are_drawn_where_there_is_something(tmp_path):
    runs = [*OURS, *PEERS]
    files = {file.name for file in draw(summarise(PLAN, runs, complete=True), runs, tmp_path)}
    assert files == {
        f"{name}.{kind}"
        for name in ("ratios-mlx_lm.server", "ttft", "memory")
        for kind in ("png", "svg")
    }
    assert (tmp_path / "ttft.png").read_bytes().startswith(b"\x89PNG")
    assert draw(summarise(PLAN, [], complete=False), [], tmp_path) == []
