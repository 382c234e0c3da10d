"""The batch probe finds what batching would change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlxceld.engine import probe as probe_module
from mlxceld.engine.probe import BatchVerdict, probe
from mlxceld.kv import row_caches
from tiny_models import tiny_families

UNPADDED = {"mamba", "rwkv7"}


@pytest.mark.parametrize("family", tiny_families())
def test_verdict_by_family(tiny_model: Callable[..., Any], family: str) -> None:
    verdict = probe(tiny_model(family).module, 256)
    assert verdict.mode == ("unpadded" if family in UNPADDED else "full")
    assert bool(verdict.reason) == (family in UNPADDED)


def test_a_model_without_batched_caches_goes_row_by_row(
    tiny_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_caches, "can_merge", lambda _: False)
    verdict = probe(tiny_model("llama").module, 256)
    assert verdict == BatchVerdict(False, False, verdict.reason)
    assert verdict.mode == "rows"
    assert "batched form" in verdict.reason


def test_code_that_cannot_take_a_batch_goes_row_by_row(tiny_model: Callable[..., Any]) -> None:
    module = tiny_model("llama").module

    class Single:
        parameters = module.parameters
        modules = module.modules
        layers = module.layers

        def __call__(self, tokens: Any, cache: Any = None) -> Any:
            if tokens.shape[0] > 1:
                raise ValueError("no batches here")
            return module(tokens, cache=cache)

    verdict = probe(Single(), 256)
    assert verdict.mode == "rows"
    assert "no batches here" in verdict.reason


def test_padding_that_is_not_announced_is_found(
    tiny_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_caches, "finalize", lambda _: None)
    assert probe(tiny_model("mamba2").module, 256).mode != "full"


def test_a_model_that_gives_no_numbers_is_told_as_such(tiny_model: Callable[..., Any]) -> None:
    module = tiny_model("llama").module

    class Broken:
        layers = module.layers
        parameters = module.parameters
        modules = module.modules

        def __call__(self, tokens: Any, cache: Any = None) -> Any:
            return module(tokens, cache=cache) * float("nan")

    verdict = probe(Broken(), 256)
    assert (verdict.mode, verdict.fixed_chunks) == ("rows", False)
    assert "not numbers" in verdict.reason


def test_the_probe_covers_what_it_must() -> None:
    lengths, chunk = probe_module.LENGTHS, probe_module.CHUNK
    assert 1 in lengths
    assert {2, 3, 4} <= set(lengths)
    assert len(set(lengths)) < len(lengths)
    assert any(length > 3 * chunk for length in lengths)
    assert sum(1 < length <= chunk for length in lengths) >= 2
    assert all(length % 256 for length in lengths)
