"""The lengths at which a model's attention changes are found, lowered, and put back."""

from __future__ import annotations

import importlib
import random
from typing import Any

import mlx.core as mx
import pytest
from family_configs import family_config
from mlx.utils import tree_flatten, tree_unflatten

from mlxceld.engine import probe as probe_module
from mlxceld.engine.thresholds import longest, lowered, thresholds

FAMILIES = {
    "gemma3_text": (64, {"sliding_window": 24}),
    "gpt_oss": (96, {"sliding_window": 24}),
    "cohere2": (96, {"sliding_window": 24}),
    "deepseek_v32": (96, {"index_topk": 24}),
    "recurrent_gemma": (96, {"attention_window_size": 24}),
    "plamo3": (96, {"window_size": 24, "sliding_window": 24}),
    "minimax_m3_vl": (
        256,
        {"text_config": {"index_block_size": 8, "index_topk_blocks": 3, "index_local_blocks": 1}},
    ),
}
"""The longest threshold, and the configuration that a lowered model is one of."""

WINDOWS = ("sliding_window", "index_topk", "attention_window_size", "window_size")


def _model(family: str, changes: dict[str, Any]) -> Any:
    config = family_config(family)
    for name, value in changes.items():
        config[name] = {**config[name], **value} if isinstance(value, dict) else value
    code = importlib.import_module(f"mlx_lm.models.{family}")
    mx.random.seed(1)
    model = code.Model(code.ModelArgs.from_dict(config))
    weights = [
        (name, mx.random.normal(v.shape) * 0.1) for name, v in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten(weights))
    model.eval()
    return model


def _logits(model: Any) -> mx.array:
    rng = random.Random(3)
    prompt = [rng.randrange(256) for _ in range(120)]
    return probe_module.alone(model, prompt, [1, 2, 3])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lowered_model_is_that_of_a_lowered_configuration(family: str) -> None:
    most, low = FAMILIES[family]
    plain = {name: most for name in WINDOWS if name in low}
    model = _model(family, plain)
    found = thresholds(model)
    assert longest(found) == most
    before = _logits(model)
    with lowered(found):
        inside = _logits(model)
    assert mx.allclose(inside, _logits(_model(family, low)), atol=1e-4).item()
    if family != "minimax_m3_vl":
        assert not mx.allclose(inside, before, atol=1e-4).item()
    assert mx.array_equal(_logits(model), before).item()


def test_what_was_lowered_is_put_back_after_a_fault() -> None:
    model = _model("gemma3_text", {})
    found = thresholds(model)
    values = [(one.name, getattr(one.owner, one.name)) for one in found]
    with pytest.raises(KeyError), lowered(found):
        raise KeyError
    assert [(one.name, getattr(one.owner, one.name)) for one in found] == values


@pytest.mark.parametrize("family", ["llama", "qwen3", "mamba", "gpt2", "dbrx"])
def test_most_families_have_none_that_matters(family: str) -> None:
    assert longest(thresholds(_model(family, {"sliding_window": None}))) == 0


def test_a_length_that_cannot_be_lowered_is_passed_by_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where code has copied the number to a place of its own."""
    model = _model("minimax_m3_vl", {})
    monkeypatch.setattr(probe_module, "lowered", lambda found: lowered([]))
    seen: list[Any] = []
    probe = probe_module._probe

    def watched(module: Any, vocab: int, lengths: Any) -> Any:
        seen.append(list(lengths))
        return probe(module, vocab, lengths)

    monkeypatch.setattr(probe_module, "_probe", watched)
    assert probe_module.probe(model, 256).mode == "rows"
    assert seen[0][-2:] == [276, 313]
