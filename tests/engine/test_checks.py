"""The checks of a load: read where they were kept, made anew where anything has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_harness import make_settings
from mlxceld.engine import checks as checks_module
from mlxceld.engine.checks import Checks
from mlxceld.engine.fingerprint import fingerprint
from mlxceld.engine.probe import BatchVerdict
from mlxceld.engine.shared_probe import SharingVerdict
from mlxceld.engine.verdict_file import VERDICTS_NAME, VerdictFile
from mlxceld.models.loading import LoadedModel
from mlxceld.prompt_cache.reports import VerifyCheck, VerifyReport
from tiny_models import TinyModels

BATCH = BatchVerdict(False, True, "said", fixed_chunks=False)
SHARING = SharingVerdict(True, True, "why")
REUSE = VerifyReport((VerifyCheck("a", "live", True, "well"),), 99)


class Made:
    """Counts the checks that are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        for name, result in (("probe", BATCH), ("probe_sharing", SHARING), ("verify", REUSE)):
            monkeypatch.setattr(checks_module, name, self._counted(name, result))

    def _counted(self, name: str, result: Any) -> Callable[..., Any]:
        def make(*_: Any) -> Any:
            self.names.append(name)
            return result

        return make


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


def _checks(model: LoadedModel, state: Path, at: float = 7.0, **settings: Any) -> Checks:
    return Checks(
        model, make_settings(state, **settings), VerdictFile(state), wall_clock=lambda: at
    )


def _all(checks: Checks) -> tuple[BatchVerdict, SharingVerdict, VerifyReport]:
    return checks.batch(), checks.sharing([], 16), checks.reuse()


@pytest.fixture
def model(tiny_model: Callable[..., Any]) -> LoadedModel:
    found: LoadedModel = tiny_model("llama")
    return found


def test_a_second_start_makes_no_check(model: LoadedModel, tmp_path: Path, made: Made) -> None:
    first = _checks(model, tmp_path)
    assert _all(first) == (BATCH, SHARING, REUSE)
    assert len(made.names) == 3
    first.keep()
    second = _checks(model, tmp_path, at=8.0)
    # What was computed then is not computed now.
    assert _all(second) == (BATCH, SHARING, replace(REUSE, tokens_computed=0))
    assert len(made.names) == 3
    assert (second.checked_at, second.read_from_file) == (7.0, True)


def test_forgotten_ones_are_made_anew_and_replaced(
    model: LoadedModel, tmp_path: Path, made: Made
) -> None:
    first = _checks(model, tmp_path)
    _all(first)
    first.keep()
    second = _checks(model, tmp_path, at=9.0)
    second.forget()
    _all(second)
    second.keep()
    assert len(made.names) == 6
    assert _checks(model, tmp_path).checked_at == 9.0


def test_what_fails_in_service_is_kept(model: LoadedModel, tmp_path: Path, made: Made) -> None:
    first = _checks(model, tmp_path)
    _all(first)
    first.keep()
    now = SHARING.next_best("it raised")
    first.sharing_failed(now)
    assert _checks(model, tmp_path).sharing([], 16) == now


@pytest.mark.parametrize(
    "change",
    [
        {"checked_at": "soon"},
        {"batch": []},
        {"batch": {"padded_prefill": 1, "batched_decode": True}},
        {"batch": {"padded_prefill": True, "batched_decode": True, "more": 1}},
        {"reuse": []},
        {"reuse": [{"name": "a", "kind": "live", "passed": "yes", "detail": ""}]},
        {"sharing": {"works": True}},
        {"sharing": "well"},
    ],
    ids=str,
)
def test_what_does_not_read_as_verdicts_is_made_anew(
    model: LoadedModel, tmp_path: Path, made: Made, change: dict[str, Any]
) -> None:
    first = _checks(model, tmp_path)
    _all(first)
    first.keep()
    file = tmp_path / VERDICTS_NAME
    kept = json.loads(file.read_text())
    for verdicts in kept["verdicts"].values():
        verdicts.update(change)
    file.write_text(json.dumps(kept))
    second = _checks(model, tmp_path)
    assert not second.read_from_file
    _all(second)
    assert len(made.names) == 6


def test_the_fingerprint_tells_what_a_verdict_depends_on(
    tiny_models: TinyModels, model: LoadedModel, tmp_path: Path
) -> None:
    copy = tmp_path / "llama"
    copy.mkdir()
    for path in tiny_models.folder("llama").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    model = replace(model, status=replace(model.status, path=str(copy)))
    settings = make_settings(tmp_path)
    seen = {fingerprint(model, settings)}
    assert fingerprint(model, settings) in seen

    def changed(with_model: LoadedModel = model, **overrides: Any) -> None:
        new = fingerprint(with_model, make_settings(tmp_path, **overrides))
        assert new not in seen
        seen.add(new)

    changed(kv_backend="dense")
    changed(apc={"block_size": 32})
    changed(max_batch_size=3)
    changed(replace(model, status=replace(model.status, device="another")))
    (copy / "model.safetensors").touch()
    changed()
    config = (copy / "config.json").read_bytes()
    about = (copy / "config.json").stat()
    (copy / "config.json").write_bytes(config.replace(b"64", b"65", 1))
    os.utime(copy / "config.json", ns=(about.st_atime_ns, about.st_mtime_ns))
    changed()


def test_without_files_nothing_is_kept(model: LoadedModel, tmp_path: Path, made: Made) -> None:
    gone = replace(model, status=replace(model.status, path=str(tmp_path / "gone")))
    checks = _checks(gone, tmp_path)
    _all(checks)
    checks.keep()
    assert not (tmp_path / VERDICTS_NAME).exists()
