"""The admin API over TCP on a live daemon, with mlxctl and its token file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon_harness import Served
from tiny_models import TinyModels


@pytest.fixture
def served(tiny_models: TinyModels, tmp_path: Path) -> Iterator[Served]:
    prompt = tmp_path / "prompt.json"
    prompt.write_text(json.dumps({"prompt": "the quick brown fox jumps over the lazy dog " * 3}))
    each = Served(
        tmp_path,
        *("--model", str(tiny_models.folder("llama")), "--state-dir", str(tmp_path / "state")),
        *("--admin-listen", "127.0.0.1:0", "--admin-token-file", str(tmp_path / "token")),
        *("--warm-files", str(prompt), "--warm-files", str(tmp_path / "absent")),
    )
    yield each
    each.end()


def test_a_made_token_opens_and_can_be_replaced(served: Served, tmp_path: Path) -> None:
    url = served.wait_for("admin API over TCP at")["message"].split(" at ")[1]
    served.until_ready()
    token = tmp_path / "token"
    assert token.stat().st_mode & 0o777 == 0o600

    def ctl(*words: str, file: Path = token) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "mlxctl", "--url", url, "--token-file", str(file)]
        return subprocess.run(
            [*program, "-o", "json", *words], capture_output=True, text=True, check=False
        )

    assert json.loads(ctl("status").stdout)["state"] == "ready"
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-right-token")
    refused = ctl("drain", file=wrong)
    assert refused.returncode == 4
    assert json.loads(refused.stderr)["error"]["code"] == "not_authorised"

    token.write_text("a-token-of-my-own-choice\n")
    token.chmod(0o644)
    # Safe no longer: the reload is refused, and the old token would still hold.
    assert ctl("status").returncode == 4
    token.chmod(0o600)
    old = tmp_path / "old"
    served.send(1)
    served.wait_for("reload: admin.token_file")
    assert json.loads(ctl("status").stdout)["ready"] is True
    old.write_text("some-other-token-xyz")
    assert ctl("status", file=old).returncode == 4

    # What warm_files names was prefilled and pinned; what it cannot read was told.
    served.wait_for("tokens are kept, pinned as")
    served.wait_for("absent: cannot be read")
    pinned = [e for e in json.loads(ctl("cache", "entries").stdout)["entries"] if e["pins"]]
    assert len(pinned) == 1
