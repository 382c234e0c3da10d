from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxceld.models.errors import ModelError
from mlxceld.models.gguf.llama import LlamaFile, rotary_order
from mlxceld.models.gguf.reader import GgufFile
from tiny_gguf import encode, llama_metadata, llama_tensors, tiny_llama, write_gguf


def open_llama(path: Path, *, tensors: Any = None, **changes: Any) -> LlamaFile:
    tensors = llama_tensors(tiny_llama()) if tensors is None else tensors
    return LlamaFile(GgufFile(write_gguf(path / "m.gguf", llama_metadata(**changes), tensors)))


@pytest.mark.parametrize(("rows", "heads"), [(8, 1), (64, 4), (192, 3)])
def test_rotary_order_undoes_the_interleaving(rows: int, heads: int) -> None:
    original = np.arange(rows)
    interleaved = original.reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
    assert not np.array_equal(interleaved, original)
    np.testing.assert_array_equal(interleaved[rotary_order(rows, heads)], original)


def test_config_is_mlx_lms(tmp_path: Path) -> None:
    assert open_llama(tmp_path).config() == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "vocab_size": 320,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
    }


def test_without_an_output_tensor_the_embeddings_are_tied(tmp_path: Path) -> None:
    config = open_llama(tmp_path, tensors=llama_tensors(tiny_llama(tied=True))).config()
    assert config["tie_word_embeddings"] is True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general__architecture": "gemma3"}, "architecture 'gemma3'"),
        ({"general__architecture": None}, "architecture None"),
        ({"split__count": 3}, "one part of a split model"),
        ({"llama__expert_count": 8}, "mixture of experts"),
        ({"llama__block_count": None}, r"llama\.block_count is None, expected a number"),
        ({"llama__context_length": "long"}, r"llama\.context_length is 'long'"),
        ({"llama__rope__dimension_count": 8}, "8 rotary"),
        ({"llama__attention__sliding_window": 64}, "sliding-window"),
        ({"llama__attention__head_count_kv": 3}, "4 attention heads over 3 key heads"),
        ({"llama__block_count": 3}, r"tensor blk\.2\.\w+\.weight is missing"),
        ({"llama__feed_forward_length": 128}, r"has the shape .*expected \(128, 64\)"),
    ],
)
def test_what_cannot_be_imported_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        open_llama(tmp_path, **changes)
    assert "m.gguf" in str(caught.value)


def test_other_tensor_types_are_listed_by_name(tmp_path: Path) -> None:
    tensors = llama_tensors(tiny_llama())
    tensors["output.weight"] = ("Q6_K", (320, 64), bytes(320 * 64 // 256 * 210))
    tensors["blk.0.ffn_up.weight"] = ("Q4_K", (96, 64), bytes(96 * 64 // 256 * 144))
    with pytest.raises(ModelError, match=r"type Q4_K, Q6_K cannot be imported; supported are Q4_0"):
        open_llama(tmp_path, tensors=tensors)


def test_a_tensor_of_another_model_is_named(tmp_path: Path) -> None:
    tensors = llama_tensors(tiny_llama())
    tensors["blk.0.attn_q_norm.weight"] = encode(np.ones(16), "F32")
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q_norm\.weight' does not belong"):
        open_llama(tmp_path, tensors=tensors)
