"""Writes small GGUF files, byte by byte, for tests of their import."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import llama

from tiny_models import DEFAULT_TEMPLATE, SPECIAL_TOKENS, tiny_tokenizer

TYPE_CODES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14}

ALIGNMENT = 32


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]],
    *,
    version: int = 3,
) -> Path:
    """Write a file; a tensor is its type's name, its shape (rows first) and its bytes."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _string(key) + _value(value)
    offset = 0
    for name, (kind, shape, raw) in tensors.items():
        head += _string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", TYPE_CODES[kind], offset)
        offset += len(raw) + -len(raw) % ALIGNMENT
    body = b"".join(raw + bytes(-len(raw) % ALIGNMENT) for _, _, raw in tensors.values())
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + body)
    return path


def encode(array: np.ndarray, kind: str) -> tuple[str, tuple[int, ...], bytes]:
    """An array as a tensor for :func:`write_gguf`, rounded to what ``kind`` can hold."""
    array = np.asarray(array, np.float32)
    if kind in ("F32", "F16"):
        return kind, array.shape, array.astype("<f4" if kind == "F32" else "<f2").tobytes()
    blocks = [_block(block, kind) for block in array.reshape(-1, 32)]
    return kind, array.shape, b"".join(blocks)


def decode(tensor: tuple[str, tuple[int, ...], bytes]) -> np.ndarray:
    """A tensor's values, one at a time by the format's definition: the reference in tests."""
    kind, shape, raw = tensor
    if kind in ("F32", "F16"):
        return np.frombuffer(raw, "<f4" if kind == "F32" else "<f2").astype("f4").reshape(shape)
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[kind]
    values = []
    for start in range(0, len(raw), size):
        block = raw[start : start + size]
        scale = np.float32(np.frombuffer(block[:2], "<f2")[0])
        if kind == "Q8_0":
            values += [scale * np.float32(code) for code in struct.unpack("<32b", block[2:])]
            continue
        codes = [byte & 15 for byte in block[-16:]] + [byte >> 4 for byte in block[-16:]]
        if kind == "Q4_0":
            values += [scale * np.float32(code - 8) for code in codes]
        else:
            low = np.float32(np.frombuffer(block[2:4], "<f2")[0])
            values += [scale * np.float32(code) + low for code in codes]
    return np.array(values, np.float32).reshape(shape)


def llama_metadata(**changes: Any) -> dict[str, Any]:
    """The metadata of the tiny llama below; a change to None drops the key.

    Underscores in changed names stand for themselves, two of them for a dot.
    """
    tokens = sorted(tiny_tokenizer().get_vocab().items(), key=lambda item: item[1])
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "Tiny Llama",
        "llama.block_count": 2,
        "llama.context_length": 512,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": 16,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [token for token, _ in tokens],
        "tokenizer.ggml.token_type": np.array(
            [3 if token in SPECIAL_TOKENS else 1 for token, _ in tokens], np.int32
        ),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.ggml.padding_token_id": 259,
        "tokenizer.chat_template": DEFAULT_TEMPLATE,
    }
    for name, value in changes.items():
        metadata[name.replace("__", ".")] = value
    return {name: value for name, value in metadata.items() if value is not None}


def tiny_llama(*, tied: bool = False, bias: bool = False) -> llama.Model:
    """The model whose metadata is above, with random weights."""
    mx.random.seed(7)
    arguments = llama.ModelArgs(
        model_type="llama",
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=320,
        head_dim=16,
        max_position_embeddings=512,
        rope_theta=10000.0,
        tie_word_embeddings=tied,
        attention_bias=bias,
    )
    model = llama.Model(arguments)
    mx.eval(model.parameters())
    return model


def llama_tensors(
    model: llama.Model, kinds: Mapping[str, str] | None = None
) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The model's tensors as a GGUF file has them: named and permuted as its converter does.

    ``kinds`` gives the type by GGUF name without layer (``ffn_up``), F32 where it says nothing.
    """
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
        "self_attn.o_proj": "attn_output",
        **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    }
    tensors = {}
    for path, value in tree_flatten(model.parameters()):
        target, suffix = path.rsplit(".", 1)
        prefix = ""
        if target.startswith("model.layers."):
            _, _, layer, target = target.split(".", 3)
            prefix = f"blk.{layer}."
        name = names[target]
        array = np.array(value)
        if name in ("attn_q", "attn_k"):
            heads = 4 if name == "attn_q" else 2
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        kind = (kinds or {}).get(name, "F32") if array.ndim > 1 else "F32"
        tensors[f"{prefix}{name}.{suffix}"] = encode(array, kind)
    return tensors


def _block(values: np.ndarray, kind: str) -> bytes:
    if kind == "Q8_0":
        scale = np.float16(np.abs(values).max() / 127)
        codes = np.clip(np.round(values / (scale or 1)), -128, 127).astype(np.int8)
        return scale.tobytes() + codes.tobytes()
    if kind == "Q4_0":
        scale, low = np.float16(np.abs(values).max() / 7), np.float32(0)
        codes = np.clip(np.round(values / (scale or 1)) + 8, 0, 15).astype(np.uint8)
        head = scale.tobytes()
    else:
        low = np.float16(values.min())
        scale = np.float16((values.max() - values.min()) / 15)
        codes = np.clip(np.round((values - low) / (scale or 1)), 0, 15).astype(np.uint8)
        head = scale.tobytes() + low.tobytes()
    return head + (codes[:16] | codes[16:] << 4).tobytes()


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value) if 0 <= value < 2**32 else struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, np.ndarray):
        code = {"int32": 5, "uint32": 4, "float32": 6}[value.dtype.name]
        return struct.pack("<IIQ", 9, code, len(value)) + value.tobytes()
    items = b"".join(_string(item) for item in value)
    return struct.pack("<IIQ", 9, 8, len(value)) + items
