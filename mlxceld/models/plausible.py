"""Sizes of a config that its weights cannot have, found without building anything.

mlx-lm builds a model from its config before it looks at the weights: ten million layers would keep
it busy for hours, and take all memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxceld.models.errors import ModelError

_LAYER_COUNTS = (
    "n_layer",
    "n_layers",
    "num_hidden_layers",
    "num_layers",
    "num_transformer_layers",
)

_DIMENSIONS = (
    "d_model",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "kv_lora_rank",
    "moe_intermediate_size",
    "n_embd",
    "n_head",
    "n_heads",
    "n_inner",
    "n_routed_experts",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_heads",
    "num_key_value_heads",
    "num_local_experts",
    "q_lora_rank",
    "state_size",
    "vocab_size",
)
"""What is a dimension of some weight, or a part of one."""

_PARTS = ("language_config", "llm_config", "text_config")
"""Where a config of several models has the language model's own."""

_PACKED = 32
"""How many quantized values may lie in one stored number."""

_LAYERS_OF_ONE = 4
_FEW_LAYERS = 16
"""A family may use one layer's weights several times, and heads of its own beside them."""

_INDEX = re.compile(r"(?:^|\.)(\d{1,9})\.")


def check_sizes(file: Path, config: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
    """Compare a config with the shapes of its weights, by name, as their files give them.

    ``file`` is what errors name. Raises ModelError for a size that is far beyond what is there:
    whether all fits exactly is seen when the weights are loaded.
    """
    indices = [int(found[1]) for name in shapes if (found := _INDEX.search(name))]
    stored = max(indices) + 1 if indices else len(shapes)
    layers = _LAYERS_OF_ONE * stored + _FEW_LAYERS
    largest = max((size for shape in shapes.values() for size in shape), default=1)
    for name, value in _sizes(config, _LAYER_COUNTS):
        if value > layers:
            raise ModelError(f"{file}: {name} is {value}, and the weights have {stored} layers")
    for name, value in _sizes(config, _DIMENSIONS):
        if value > _PACKED * largest:
            raise ModelError(
                f"{file}: {name} is {value}, and no weight has a dimension above {largest}"
            )


def _sizes(config: Mapping[str, Any], names: Sequence[str]) -> Iterator[tuple[str, float]]:
    for part in ("", *_PARTS):
        section = config.get(part) if part else config
        if not isinstance(section, Mapping):
            continue
        for name in names:
            value = section.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield (f"{part}.{name}" if part else name), value
