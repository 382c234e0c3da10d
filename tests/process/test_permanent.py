"""How a failed start ends under which manager."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mlxceld.config.paths import failure_file
from mlxceld.process.permanent import failed_start_exit_code, start_went_well

LAUNCHD = {"XPC_SERVICE_NAME": "org.mlxceld.daemon"}
SYSTEMD = {"NOTIFY_SOCKET": "/run/notify"}


@pytest.mark.parametrize(
    ("environ", "permanent", "code"),
    [
        (LAUNCHD, True, 0),
        (LAUNCHD, False, 78),
        (SYSTEMD, True, 78),
        ({}, True, 78),
    ],
)
def test_only_launchd_is_told_that_a_permanent_fault_is_well(
    tmp_path: Path, environ: dict[str, str], permanent: bool, code: int
) -> None:
    ended = failed_start_exit_code(
        "no such model", os.EX_CONFIG, tmp_path / "s", permanent=permanent, environ=environ
    )
    assert ended == code
    assert failure_file(tmp_path / "s").exists() == bool(environ)


def test_the_failure_is_kept_until_a_start_goes_well(tmp_path: Path) -> None:
    failed_start_exit_code("no such model", 1, tmp_path, permanent=True, environ=SYSTEMD)
    kept = json.loads(failure_file(tmp_path).read_text())
    assert (kept["text"], kept["exit_code"], kept["permanent"]) == ("no such model", 1, True)
    start_went_well(tmp_path)
    start_went_well(tmp_path)
    assert not failure_file(tmp_path).exists()


def test_a_folder_that_cannot_be_written_is_no_second_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert failed_start_exit_code("x", 1, tmp_path / "file", permanent=True, environ=LAUNCHD) == 0
