"""The self-check of reuse: green for every family, and red for each fault that it is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache

from mlxceld.engine import verify as verify_module
from mlxceld.engine.probe import BatchVerdict, probe
from mlxceld.engine.thresholds import thresholds
from mlxceld.engine.verify import verify
from mlxceld.kv import row_caches, snapshots
from mlxceld.models.caches.registry import leaves
from mlxceld.models.caches.windowed import RotatingAdapter
from mlxceld.models.loading import LoadedModel
from mlxceld.prompt_cache.reports import VerifyReport
from tiny_models import tiny_families

Load = Callable[[str], LoadedModel]


def _verify(model: LoadedModel, verdict: BatchVerdict | None = None) -> VerifyReport:
    size = model.status.vocab_size
    return verify(model.module, size, verdict or probe(model.module, size), 16)


def _red(report: VerifyReport, said: str) -> None:
    assert not report.passed
    assert said in report.reason
    assert all(check.passed for check in report.checks if check.kind != "live")


@pytest.mark.parametrize("family", tiny_families())
def test_every_family_passes(tiny_model: Load, family: str) -> None:
    model = tiny_model(family)
    report = _verify(model)
    assert report.passed, report.reason
    assert report.reason == ""
    kinds = [check.kind for check in report.checks]
    assert set(model.status.layer_caches) - {"composite"} <= set(kinds)
    # Short windows are filled, too, and what can be lowered is passed.
    lives = 1 + ("windowed" in kinds) + bool(thresholds(model.module))
    assert kinds.count("live") == lives
    assert report.tokens_computed > 0


def test_a_state_kept_by_handle_is_found(tiny_model: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = verify_module._Proof._kept

    def by_handle(proof: Any, row: Any, tokens: int) -> Callable[[], Any]:
        resume = keep(proof, row, tokens)
        kept = [leaf.state for leaf in leaves(row)]

        def resume_by_handle() -> Any:
            resumed = resume()
            for leaf, state in zip(leaves(resumed), kept, strict=True):
                leaf.state = state
            return resumed

        return resume_by_handle

    monkeypatch.setattr(verify_module._Proof, "_kept", by_handle)
    for family in ("gemma3_text", "llama"):
        _red(_verify(tiny_model(family)), "a row that resumes differs")


def test_lengths_that_are_not_those_inside_the_chunk_are_found(
    tiny_model: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = row_caches.prepare
    monkeypatch.setattr(
        row_caches,
        "prepare",
        lambda batch, lengths, width: prepare(batch, [n + 7 for n in lengths], width),
    )
    for family in ("mamba2", "falcon_h1"):
        model = tiny_model(family)
        _red(_verify(model, BatchVerdict(True, True)), "a row in a batch")


def test_a_model_that_cannot_take_padding_is_found(tiny_model: Load) -> None:
    report = _verify(tiny_model("mamba"), BatchVerdict(True, True))
    _red(report, "a row in a batch differs")


def test_positions_one_off_are_found(tiny_model: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    restore = RotatingAdapter.restore

    def one_off(self: RotatingAdapter, cache: Any, state: Any) -> None:
        restore(self, cache, state)
        cache.offset += 1

    model = tiny_model("gemma3_text")
    report = _verify(model)
    assert report.passed
    monkeypatch.setattr(RotatingAdapter, "restore", one_off)
    report = _verify(model)
    assert not report.passed
    # Short of the window, the mask no longer fits; beyond it only the positions are wrong.
    assert "a row that resumes differs" in report.checks[-1].detail


def test_a_cache_of_unknown_kind_fails_with_its_name(
    tiny_model: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OddCache(ArraysCache):  # type: ignore[misc]
        pass

    monkeypatch.setattr(verify_module.row_caches, "new_row", lambda module: [OddCache(2)])
    report = _verify(tiny_model("mamba2"), BatchVerdict(True, True))
    (check,) = report.checks
    assert (check.kind, check.passed) == ("opaque", False)
    assert "OddCache" in check.detail


def test_a_proof_that_raises_has_failed(tiny_model: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no such state\nand more")

    monkeypatch.setattr(snapshots, "restore", refuse)
    report = _verify(tiny_model("mamba2"))
    assert [check.passed for check in report.checks] == [False, False]
    assert all("raised RuntimeError: no such state" in c.detail for c in report.checks)
