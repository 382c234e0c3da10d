"""Verdicts on disk: what was kept is found again, what is not to be trusted is not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mlxceld.engine.verdict_file import VERDICTS_NAME, VerdictFile


def _kept(at: float) -> dict[str, Any]:
    return {"checked_at": at, "batch": {"padded_prefill": True}}


def test_what_was_kept_is_found_by_its_fingerprint(tmp_path: Path) -> None:
    assert VerdictFile(tmp_path).get("a") is None
    VerdictFile(tmp_path).put("a", _kept(1))
    VerdictFile(tmp_path).put("b", _kept(2))
    VerdictFile(tmp_path).put("a", _kept(3))
    assert VerdictFile(tmp_path).get("a") == _kept(3)
    assert VerdictFile(tmp_path).get("b") == _kept(2)
    assert VerdictFile(tmp_path).get("c") is None


def test_the_file_is_its_owners_alone_and_nothing_else_is_left(tmp_path: Path) -> None:
    VerdictFile(tmp_path).put("a", _kept(1))
    assert (tmp_path / VERDICTS_NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [VERDICTS_NAME]


def test_the_oldest_go_first(tmp_path: Path) -> None:
    file = VerdictFile(tmp_path)
    for at in range(40):
        file.put(f"model {at}", _kept(at))
    assert [at for at in range(40) if file.get(f"model {at}")] == list(range(8, 40))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"format": 1}',
        b'{"format": 1, "verdicts": []}',
        b'{"format": 2, "verdicts": {"a": {}}}',
        b'{"format": 1, "verdicts": {"a": 3}}',
        b"[" * 100_000,
        b" " * (1 << 21),
    ],
    ids=lambda body: repr(body[:30]),
)
def test_a_broken_file_counts_as_absent_and_is_replaced(tmp_path: Path, body: bytes) -> None:
    (tmp_path / VERDICTS_NAME).write_bytes(body)
    (tmp_path / VERDICTS_NAME).chmod(0o600)
    file = VerdictFile(tmp_path)
    assert file.get("a") is None
    file.put("a", _kept(1))
    assert file.get("a") == _kept(1)


def test_a_file_that_others_may_write_counts_as_absent(tmp_path: Path) -> None:
    file = VerdictFile(tmp_path)
    file.put("a", _kept(1))
    (tmp_path / VERDICTS_NAME).chmod(0o622)
    assert file.get("a") is None


def test_a_link_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(json.dumps({"format": 1, "verdicts": {"a": _kept(1)}}))
    elsewhere.chmod(0o600)
    state = tmp_path / "state"
    state.mkdir()
    (state / VERDICTS_NAME).symlink_to(elsewhere)
    file = VerdictFile(state)
    assert file.get("a") is None
    before = elsewhere.read_text()
    file.put("b", _kept(2))
    assert elsewhere.read_text() == before
    assert file.get("b") == _kept(2)


def test_a_pipe_does_not_hold_up_a_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / VERDICTS_NAME, 0o600)
    assert VerdictFile(tmp_path).get("a") is None


def test_a_folder_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    file = VerdictFile(tmp_path / "gone")
    file.put("a", _kept(1))
    assert file.get("a") is None
