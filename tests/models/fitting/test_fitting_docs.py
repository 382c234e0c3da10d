from __future__ import annotations

import re
from pathlib import Path

from mlxceld.models.fitting.steps import STEPS

HTTP_API = Path(__file__).parents[3] / "docs" / "http-api.md"


def test_the_document_lists_every_step_and_no_other() -> None:
    text = HTTP_API.read_text(encoding="utf-8")
    section = text.partition("### Fitting a conversation")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(step.name for step in STEPS)
