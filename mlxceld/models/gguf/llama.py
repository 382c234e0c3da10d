"""GGUF's llama architecture: hyperparameters, tensor names and row order, as mlx-lm has them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxceld.models.errors import ModelError, shown
from mlxceld.models.gguf.blocks import SUPPORTED_TYPES, Array
from mlxceld.models.gguf.reader import GgufFile, TensorInfo, number
from mlxceld.models.gguf.rope import ROPE_FREQUENCIES, rope_scaling

_OUTER_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_LAYER_TENSOR = re.compile(r"blk\.([0-9]{1,9})\.(\w+)\.(weight|bias)")

_MAX_SIZE = 2**31 - 1
"""The largest size that an array or a config may have."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor's way: ``target`` is its mlx-lm name without .weight or .bias.

    ``heads`` is set where the rows are in GGUF's rotary order and must be brought back.
    """

    info: TensorInfo
    target: str
    suffix: str
    heads: int | None

    def reorder(self, array: Array) -> Array:
        """Rows in the order that mlx-lm expects."""
        if self.heads is None:
            return array
        return np.ascontiguousarray(array[rotary_order(array.shape[0], self.heads)])


def rotary_order(rows: int, heads: int) -> Array:
    """Which GGUF row each row of a query or key projection comes from.

    llama files hold the two halves of each head interleaved; mlx-lm, as the original models,
    wants one half after the other.
    """
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


class LlamaFile:
    """A GGUF file of the llama architecture, checked in full before anything is written."""

    def __init__(self, file: GgufFile) -> None:
        """Raises ModelError that names what this import cannot take."""
        self.file = file
        architecture = file.metadata.get("general.architecture")
        if architecture != "llama":
            raise ModelError(
                f"{file.path}: architecture {shown(architecture)} cannot be imported, only 'llama'"
            )
        parts = file.metadata.get("split.count", 1)
        if type(parts) is not int or parts != 1:
            raise ModelError(f"{file.path}: one part of a split model; merge the parts first")
        refuse_tensor_types(file)
        if self.number("expert_count", 0):
            raise ModelError(f"{file.path}: a mixture of experts cannot be imported")
        self.heads = self.size("attention.head_count")
        self.kv_heads = self.size("attention.head_count_kv", self.heads)
        self.hidden_size = self.size("embedding_length")
        self.inner_size = self.size("feed_forward_length")
        self.layers = self.size("block_count")
        if self.layers > len(file.tensors):
            raise ModelError(
                f"{file.path}: llama.block_count is {self.layers},"
                f" and the file has {len(file.tensors)} tensors"
            )
        if self.heads % self.kv_heads:
            raise ModelError(
                f"{file.path}: {self.heads} attention heads over {self.kv_heads} key heads"
            )
        self.head_dim = self.size("attention.key_length", self.hidden_size // self.heads)
        self.context_length = self.size("context_length")
        self._check_attention()
        self.plans = tuple(self._plan(info) for info in file.tensors.values() if _is_weight(info))
        self._check_tensors()
        self.norm_epsilon = self.number("attention.layer_norm_rms_epsilon")
        self.rope_base = self.number("rope.freq_base", 10000.0)
        if self.norm_epsilon < 0 or self.rope_base <= 0:
            raise ModelError(
                f"{file.path}: llama.attention.layer_norm_rms_epsilon is {self.norm_epsilon} and"
                f" llama.rope.freq_base is {self.rope_base}, expected positive numbers"
            )
        self.rope_scaling = rope_scaling(file, self.head_dim, _shortest(self.rope_base))

    def config(self) -> dict[str, Any]:
        """The config.json of mlx-lm's llama, without token ids and quantization."""
        names = self.file.tensors.keys()
        config: dict[str, Any] = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": self.hidden_size,
            "intermediate_size": self.inner_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": _shortest(self.norm_epsilon),
            "rope_theta": _shortest(self.rope_base),
            "max_position_embeddings": self.context_length,
            "vocab_size": self.file.tensors["token_embd.weight"].shape[0],
            "tie_word_embeddings": "output.weight" not in names,
            "attention_bias": "blk.0.attn_q.bias" in names,
            "mlp_bias": "blk.0.ffn_up.bias" in names,
            "hidden_act": "silu",
        }
        if self.rope_scaling is not None:
            config["rope_scaling"] = self.rope_scaling
        return config

    def number(self, key: str, default: float | None = None) -> float:
        """A hyperparameter. Raises ModelError if it is not there and has no default."""
        return number(self.file, f"llama.{key}", default)

    def size(self, key: str, default: int | None = None) -> int:
        """A hyperparameter that counts something, at least 1."""
        value = self.number(key, default)
        if value != int(value) or not 1 <= value <= _MAX_SIZE:
            raise ModelError(
                f"{self.file.path}: llama.{key} is {value},"
                f" expected a whole number from 1 to {_MAX_SIZE}"
            )
        return int(value)

    def _check_attention(self) -> None:
        rotary = self.number("rope.dimension_count", self.head_dim)
        values = self.number("attention.value_length", self.head_dim)
        if rotary != self.head_dim or values != self.head_dim or self.head_dim % 2:
            raise ModelError(
                f"{self.file.path}: heads of {self.head_dim} with {rotary} rotary and {values}"
                " value dimensions cannot be imported; all three must be equal and even"
            )
        window = self.number("attention.sliding_window", 0)
        if 0 < window < self.context_length:
            raise ModelError(f"{self.file.path}: sliding-window attention cannot be imported")

    def _plan(self, info: TensorInfo) -> TensorPlan:
        name, _, suffix = info.name.rpartition(".")
        if suffix in ("weight", "bias") and name in _OUTER_NAMES:
            return TensorPlan(info, _OUTER_NAMES[name], suffix, None)
        match = _LAYER_TENSOR.fullmatch(info.name)
        if match is None or match[2] not in _LAYER_NAMES:
            raise ModelError(
                f"{self.file.path}: tensor {shown(info.name)} does not belong to a llama model"
            )
        if int(match[1]) >= self.layers:
            raise ModelError(
                f"{self.file.path}: tensor {info.name} lies beyond llama.block_count, {self.layers}"
            )
        heads = {"attn_q": self.heads, "attn_k": self.kv_heads}.get(match[2])
        target = f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}"
        return TensorPlan(info, target, match[3], heads)

    def _check_tensors(self) -> None:
        """Make sure that all layers are there, in the sizes that the metadata promises."""
        hidden, inner = self.hidden_size, self.inner_size
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes = {
            "attn_norm": (hidden,),
            "attn_q": (query, hidden),
            "attn_k": (key, hidden),
            "attn_v": (key, hidden),
            "attn_output": (hidden, query),
            "ffn_norm": (hidden,),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }
        expected = {
            f"blk.{layer}.{name}.weight": shape
            for layer in range(self.layers)
            for name, shape in shapes.items()
        }
        expected["output_norm.weight"] = (hidden,)
        for name, shape in expected.items():
            found = self.file.tensors.get(name)
            if found is None:
                raise ModelError(f"{self.file.path}: tensor {name} is missing")
            if found.shape != shape:
                raise ModelError(
                    f"{self.file.path}: tensor {name} has the shape {found.shape}, expected {shape}"
                )
        embedding = self.file.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2 or embedding.shape[1] != hidden:
            raise ModelError(f"{self.file.path}: no token_embd.weight with rows of {hidden}")


def refuse_tensor_types(file: GgufFile) -> None:
    """Raise ModelError that lists the tensor types which cannot be imported, if there are any."""
    found = sorted({info.type for info in file.tensors.values()} - set(SUPPORTED_TYPES))
    if found:
        raise ModelError(
            f"{file.path}: tensors of type {', '.join(found)} cannot be imported;"
            f" supported are {', '.join(SUPPORTED_TYPES)}"
        )


def _is_weight(info: TensorInfo) -> bool:
    # The frequencies become part of the config.
    return info.name != ROPE_FREQUENCIES


def _shortest(value: float) -> float:
    """A number that went through float32 as people write it: 1e-05, not 9.99999974e-06."""
    return float(str(np.float32(value)))
