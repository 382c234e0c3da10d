"""The script that runs clients, held to the page that says which were run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "clients"))

import run as try_clients  # noqa: E402
from scripted_daemon import TEMPLATES  # noqa: E402
from verdict import Verdict  # noqa: E402

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [n for n in try_clients.CLIENTS if "Python" not in n])
def test_each_client_stands_on_the_page(name: str) -> None:
    assert name in PAGE.split("## SDKs")[0]


def test_the_templates_exist() -> None:
    assert all(path.is_file() for path in TEMPLATES.values())


@pytest.mark.parametrize(
    ("outcome", "share", "failed"),
    [
        ("ok", None, False),
        ("ok", 0.99, False),
        ("ok", 0.5, True),
        ("no", 1.0, True),
        ("skipped", None, False),
    ],
)
def test_a_turn_that_was_computed_again_has_failed(
    outcome: str, share: float | None, failed: bool
) -> None:
    verdict = Verdict("c", "1", "m", "second turn", outcome, share)
    assert verdict.failed(0.95) == failed
    assert ("FAILED" in verdict.line(0.95)) == failed
