from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlxceld.models.info import context_length, dtype_name, parameter_count


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 4096}, (4096, True)),
        (
            {"text_config": {"max_position_embeddings": 32}, "max_position_embeddings": 8},
            (32, True),
        ),
        ({"text_config": {}, "max_position_embeddings": 8}, (8, True)),
        ({"n_positions": 1024}, (1024, True)),
        ({"max_position_embeddings": None, "max_seq_len": 99}, (99, True)),
        ({"max_position_embeddings": 0}, (8192, False)),
        ({"max_position_embeddings": True}, (8192, False)),
        ({"text_config": None}, (8192, False)),
    ],
)
def test_context_length(config: dict[str, Any], expected: tuple[int, bool]) -> None:
    assert context_length(config) == expected


def test_dtype_and_parameters_of_a_quantized_model() -> None:
    model = nn.Sequential(nn.Linear(64, 32, bias=False), nn.Linear(32, 8, bias=False))
    model.set_dtype(mx.bfloat16)
    assert (dtype_name(model, {}), parameter_count(model)) == ("bfloat16", 64 * 32 + 32 * 8)
    nn.quantize(model, group_size=32, bits=4)
    assert dtype_name(model, {"quantization": {"bits": 4}}) == "4-bit, bfloat16"
    assert parameter_count(model) == 64 * 32 + 32 * 8
