"""The page of families is what its script writes, and a few of the trickiest pass."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from check_families import HEADER, page
from family_checks import FamilyResult, _judged, check_family
from family_configs import UNBUILT, families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "families.md"
ROW = re.compile(r"^\| (?P<family>\S+) \|(?P<cells>.*)\|$", re.MULTILINE)


def _rows() -> dict[str, list[str]]:
    body = PAGE.read_text().split("|---|---|---|---|---|---|\n", 1)[1]
    return {
        found["family"]: [cell.strip() for cell in found["cells"].split("|")]
        for found in ROW.finditer(body)
    }


def _reasons() -> dict[str, str]:
    part = PAGE.read_text().split("## Reasons\n", 1)[1].split("## Not run", 1)[0]
    return dict(re.findall(r"^- \*\*(\S+)\*\*: (.*)$", part, re.MULTILINE))


def test_the_page_is_what_the_script_writes() -> None:
    reasons = _reasons()
    results: dict[str, dict[str, Any]] = {}
    for family, (status, batching, reuse, sharing, compared) in _rows().items():
        results[family] = FamilyResult(
            family,
            status,
            batching,
            reuse,
            sharing,
            int(compared or 0),
            reasons=(reasons[family],) if family in reasons else (),
        ).as_json()
    results = json.loads(json.dumps(results))
    assert page(results, UNBUILT, version("mlx-lm")) == PAGE.read_text()


def test_every_family_is_on_the_page() -> None:
    assert set(_rows()) == set(families()) - set(UNBUILT)


def test_nothing_wrong_is_on_the_page() -> None:
    statuses = {cells[0] for cells in _rows().values()}
    assert statuses <= {"works", "row by row", "uncached", "row by row, uncached", "refused"}
    for family, (status, *_) in _rows().items():
        assert status == "works" or family in _reasons()


def test_a_wrong_answer_is_on_the_page() -> None:
    right = FamilyResult("a", "works", "full", "blocks", "read in place", 9)
    wrong = replace(right, family="b", status="wrong", wrong=("alone, 90 tokens: no",))
    text = page({"a": right.as_json(), "b": wrong.as_json()}, {"c": "is not"}, "1.2")
    assert text.startswith(HEADER.format(mlx_lm="1.2"))
    assert "| a | works | full | blocks | read in place | 9 |" in text
    assert "- **b**: alone, 90 tokens: no" in text
    assert "- **c**: is not" in text


def test_an_answer_is_judged_by_its_scores() -> None:
    scores = mx.log(mx.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]))
    own = [float(scores[0, 0].item()), float(scores[1, 2].item())]
    assert _judged(scores, [0, 2], own, 1e-4) == ""
    assert "token 1 is 1" in _judged(scores, [0, 1], [own[0], float(scores[1, 1].item())], 1e-4)
    assert "log-probability off by 0.001" in _judged(scores, [0, 2], [own[0] + 1e-3, own[1]], 1e-4)


@pytest.mark.parametrize("family", ["minimax_m3_vl", "longcat_flash_ngram", "gemma2", "afm7"])
async def test_a_tricky_family(family: str, tmp_path: Path) -> None:
    result = await check_family(family, tmp_path)
    assert result.wrong == ()
    assert result.compared == 380
    assert result.status == _rows()[family][0]
