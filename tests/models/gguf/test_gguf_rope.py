from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.rope_utils import initialize_rope

from mlxceld.models.errors import ModelError
from mlxceld.models.gguf.reader import GgufFile
from mlxceld.models.gguf.rope import llama3_factors, rope_scaling
from tiny_gguf import encode, write_gguf


def scaling(path: Path, metadata: dict[str, Any], factors: Any = None) -> dict[str, Any] | None:
    tensors = {} if factors is None else {"rope_freqs.weight": encode(factors, "F32")}
    file = GgufFile(write_gguf(path / "r.gguf", metadata, tensors))
    return rope_scaling(file, 64, 500000.0)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"llama.rope.scaling.type": "none"},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1.0},
    ],
)
def test_no_scaling(tmp_path: Path, metadata: dict[str, Any]) -> None:
    assert scaling(tmp_path, metadata) is None


def test_linear_scaling(tmp_path: Path) -> None:
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert scaling(tmp_path, metadata) == {"type": "linear", "factor": 4.0}


def test_other_scalings_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="rope scaling 'yarn'"):
        scaling(tmp_path, {"llama.rope.scaling.type": "yarn"})


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_is_recognised_and_gives_mlx_lms_frequencies(tmp_path: Path, factor: float) -> None:
    factors = llama3_factors(factor, 64, 500000.0)
    config = scaling(tmp_path, {}, factors)
    assert config is not None
    rope = initialize_rope(64, 500000.0, False, config, 131072)
    plain = 500000.0 ** (np.arange(0, 64, 2) / 64)
    np.testing.assert_allclose(np.array(rope._freqs.astype(mx.float32)) / plain, factors, rtol=1e-4)


def test_other_frequency_factors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not those of a llama3 scaling"):
        scaling(tmp_path, {}, np.linspace(1, 8, 32))
