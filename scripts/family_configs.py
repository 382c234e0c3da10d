"""Tiny configurations of mlx-lm's model files, derived from what their arguments are called.

A field that has a name of :data:`SMALL` gets its small value, whether the family has a default for
it or not; other fields keep their defaults. What a family needs besides is in :data:`HINTS`.
"""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx_lm.models

VOCAB_SIZE = 320

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD = 64, 4, 4, 2, 16

_SAME: tuple[tuple[Any, str], ...] = (
    (
        VOCAB_SIZE,
        "vocab_size padded_vocab_size vocab_size_per_layer_input",
    ),
    (
        HIDDEN,
        "hidden_size n_embd d_model hidden_dim model_dim dim block_dim expert_hidden_size",
    ),
    (
        LAYERS,
        "num_hidden_layers n_layers n_layer num_layers num_transformer_layers",
    ),
    (
        HEADS,
        "num_attention_heads n_heads n_head num_heads index_n_heads "
        "linear_num_value_heads mamba_n_heads",
    ),
    (
        KV_HEADS,
        "num_key_value_heads num_kv_heads n_kv_heads linear_num_key_heads "
        "num_experts_per_tok moe_topk num_experts_per_token moe_k moe_top_k n_groups "
        "mamba_n_groups num_local_experts_tok",
    ),
    (
        HEAD,
        "head_dim v_head_dim qk_nope_head_dim index_head_dim linear_key_head_dim "
        "linear_value_head_dim swa_head_dim swa_v_head_dim global_head_dim "
        "attention_head_dim mamba_head_dim mamba_d_head ssm_state_size mamba_d_state "
        "state_size query_pre_attn_scalar",
    ),
    (
        8,
        "qk_rope_head_dim a_low_rank_dim v_low_rank_dim gate_low_rank_dim "
        "decay_low_rank_dim rotary_dim hidden_size_per_layer_input mamba_num_heads",
    ),
    (
        32,
        "moe_intermediate_size kv_lora_rank q_lora_rank expert_ffn_hidden_size "
        "ffn_dim_expert shared_expert_intermediate_size "
        "moe_shared_expert_intermediate_size lora_rank moe_ffn_hidden_size sliding_window "
        "window_size attention_window_size sliding_window_size dim_model_base",
    ),
    (
        128,
        "intermediate_size ffn_hidden_size d_ff n_inner ff_intermediate_size mamba_d_ssm "
        "intermediate_size_mlp shared_intermediate_size dense_intermediate_size "
        "block_ff_dim ffn_dim feed_forward_size",
    ),
    (
        4,
        "num_experts n_routed_experts num_local_experts conv_kernel "
        "linear_conv_kernel_dim conv_kernel_size mamba_d_conv short_conv_kernel_size "
        "moe_num_experts time_step_rank mamba_dt_rank",
    ),
    (
        1,
        "n_group topk_group n_shared_experts num_shared_experts num_shared_expert "
        "routed_scaling_factor moe_layer_freq decoder_sparse_step logits_scaling "
        "attention_multiplier embedding_multiplier residual_multiplier "
        "first_k_dense_replace num_dense_layers num_expert_group logit_scale "
        "dense_attention_every_n_layers",
    ),
    (
        4096,
        "max_position_embeddings n_positions n_ctx max_sequence_length max_seq_len "
        "block_size model_max_length max_context_length seq_length context_length",
    ),
    (
        10000.0,
        "rope_theta rotary_emb_base rope_embedding_base rope_base",
    ),
    (
        1e-05,
        "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps rms_norm_epsilon",
    ),
    (
        1.0,
        "rotary_pct_never scale_depth scale_emb",
    ),
    (
        0.5,
        "partial_rotary_factor rotary_pct",
    ),
    (
        2,
        "sliding_window_pattern full_attention_interval mamba_expand expand "
        "layer_group_size group_norm_size conv_window zero_expert_num conv_L_cache",
    ),
    (
        64,
        "index_topk",
    ),
    (
        16,
        "block_multiple_of",
    ),
    (
        False,
        "tie_word_embeddings attention_bias mlp_bias use_bias conv_bias use_mixed_mlp_moe "
        "use_cla mamba_proj_bias qkv_bias block_auto_adjust_ff_dim post_norm "
        "moe_tie_word_embeddings mla_scale_q_lora mla_scale_kv_lora use_conv_bias "
        "add_swa_attention_sink_bias add_full_attention_sink_bias",
    ),
    (
        True,
        "norm_topk_prob qk_norm use_qk_norm norm_topk use_expert_bias",
    ),
)

SMALL: dict[str, Any] = {name: value for value, names in _SAME for name in names.split()}

_SLIDING = ["sliding_attention", "full_attention"] * (LAYERS // 2)
_ALIKE = ["full_attention"] * LAYERS
_ROPES = {kind: {"rope_theta": 10000.0, "rope_type": "default"} for kind in set(_SLIDING)}
_LINEAR = {
    "linear_attn_config": {
        "kda_layers": [1, 2, 3],
        "full_attn_layers": [4],
        "num_heads": HEADS,
        "head_dim": HEAD,
        "short_conv_kernel_size": 4,
    },
    "num_key_value_heads": HEADS,
    "v_head_dim": HEAD,
    "qk_nope_head_dim": HEAD,
    "qk_rope_head_dim": 8,
}
_SCALED = {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64, "rope_theta": 1e4}
_MOE = {"mlp_only_layers": [], "decoder_sparse_step": 1}

TEXT: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "lfm2-vl": "lfm2",
    "mistral3": "ministral3",
    "pixtral": "llama",
    "qwen2_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen3_5_moe": "qwen3_5",
}
"""Families that wrap the text model of another one."""

HINTS: dict[str, dict[str, Any]] = {
    "afmoe": {"layer_types": _SLIDING},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "deepseek_v2": {
        "rope_scaling": {"factor": 2.0, "original_max_position_embeddings": 2048, "type": "yarn"},
        "topk_method": "greedy",
    },
    "deepseek_v32": {"num_key_value_heads": HEADS},
    "glm_moe_dsa": {
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "num_key_value_heads": HEADS,
    },
    "exaone4": {"sliding_window_pattern": "LG", "rope_scaling": None},
    "exaone_moe": {"layer_types": _SLIDING, "is_moe_layer": [False, True, False, True]},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gear": {"layer_types": _SLIDING},
    "gemma3n": {
        "text_config": {
            "model_type": "gemma3n_text",
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "intermediate_size": [128] * LAYERS,
            "num_attention_heads": HEADS,
            "head_dim": HEAD,
            "rms_norm_eps": 1e-5,
            "vocab_size": VOCAB_SIZE,
            "num_key_value_heads": KV_HEADS,
            "num_kv_shared_layers": 1,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "sliding_window": 32,
            "max_position_embeddings": 4096,
            "rope_local_base_freq": 10000.0,
            "rope_theta": 10000.0,
            "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "activation_sparsity_pattern": [0.0] * LAYERS,
            "hidden_size_per_layer_input": 16,
            "altup_num_inputs": 4,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "laurel_rank": 16,
        }
    },
    "gemma4_text": {"layer_types": _SLIDING, "num_kv_shared_layers": 1},
    "hunyuan": {
        "moe_intermediate_size": 32,
        "cla_share_factor": 2,
        "rope_scaling": {"factor": 1.0, "type": "dynamic", "alpha": 1.0},
    },
    "jamba": {"layers_block_type": ["mamba", "attention"] * 2, "attn_layer_period": 2},
    "kimi_k3": {f"text_config.{name}": value for name, value in _LINEAR.items()}
    | {"text_config.activation_situ_beta": 1.0},
    "kimi_linear": dict(_LINEAR),
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "llama4": {
        "text_config.rope_scaling": None,
        "text_config.attention_chunk_size": 32,
        "text_config.floor_scale": 48,
        "text_config.interleave_moe_layer_step": 2,
        "text_config.num_experts_per_tok": 1,
        "text_config.model_type": "llama4_text",
    },
    "llama4_text": {"no_rope_layers": [1, 0, 1, 0]},
    "longcat_flash": {
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
        "attention_method": "MLA",
        "zero_expert_type": "identity",
    },
    "longcat_flash_ngram": {
        "mla_scale_q_lora": True,
        "mla_scale_kv_lora": True,
        "hidden_size": 72,
        "emb_neighbor_num": 4,
        "emb_split_num": 2,
        "ngram_vocab_size_ratio": 3,
    },
    "mamba2": {"time_step_limit": [0.0, 1e9], "num_heads": 8, "n_groups": 1, "time_step_rank": 4},
    "mellum": {"layer_types": _SLIDING, "rope_parameters": _ROPES},
    "mimo_v2_flash": {
        "hybrid_layer_pattern": [1, 0, 1, 0],
        "moe_layer_freq": [0, 1, 1, 1],
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "swa_num_attention_heads": HEADS,
        "swa_num_key_value_heads": KV_HEADS,
        "layernorm_epsilon": 1e-5,
        "swa_rope_theta": 10000.0,
    },
    "minicpm3": {"rope_scaling": {"original_max_position_embeddings": 4096}},
    "minimax_m3_vl": {
        "text_config.moe_layer_freq": [0, 1, 1, 1],
        "text_config.index_n_heads": 2,
        "text_config.index_head_dim": 16,
        "text_config.index_block_size": 32,
        "text_config.index_topk_blocks": 8,
        "text_config.rotary_dim": 8,
    },
    "ministral3": {"rope_parameters": _SCALED, "layer_types": _SLIDING},
    "mistral4": {"rope_parameters": _SCALED | {"rope_type": "default"}},
    "muse_glimmer": {"layer_types": _SLIDING, "layer_rope_theta": [1e4, 0.0, 1e4, 1e4]},
    "nemotron-nas": {
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"n_heads_in_group": 2}, "ffn": {"no_op": True}},
        ]
    },
    "nemotron_h": {
        "hybrid_override_pattern": ["M", "*", "M", "-"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 1,
    },
    "openelm": {
        "num_query_heads": [HEADS] * LAYERS,
        "num_kv_heads": [KV_HEADS] * LAYERS,
        "ffn_multipliers": [1.0] * LAYERS,
        "ffn_dim_divisor": 16,
        "num_transformer_layers": LAYERS,
    },
    "phi3small": {
        "vocab_size": 100352,
        "blocksparse_block_size": 32,
        "blocksparse_num_local_blocks": 2,
        "blocksparse_vert_stride": 2,
        "dense_attention_every_n_layers": 2,
        "gegelu_limit": 20.0,
    },
    "phixtral": {"num_vocab": VOCAB_SIZE, "rotary_dim": 8},
    "plamo": {"n_shared_head": 2},
    "qwen": {"kv_channels": HEAD},
    "qwen3_moe": dict(_MOE),
    "qwen3_next": dict(_MOE),
    "recurrent_gemma": {
        "block_types": ["recurrent", "attention"] * 2,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "attention_window_size": 32,
    },
    "spark2_5": {"rope_parameters": _ROPES, "layer_types": _SLIDING},
}
"""What a family needs besides; ``...`` leaves a field to its default."""

UNBUILT: dict[str, str] = {
    "bitnet": "its layers are a Metal kernel",
    "muse_spark": "its positions are a Metal kernel",
    "olmo": "needs the package ai2-olmo",
    "prism_hadamard_qwen35": "is a packing of quantized weights of qwen3_5",
}
"""Families that no tiny model is made of, and why."""


def families() -> list[str]:
    """The model files of the installed mlx-lm, by name."""
    folder = Path(next(iter(mlx_lm.models.__path__)))
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
    return [name for name in names if "class Model(" in (folder / f"{name}.py").read_text()]


def family_config(family: str) -> dict[str, Any]:
    """A tiny configuration of a family; its :data:`HINTS` win."""
    code = importlib.import_module(f"mlx_lm.models.{family}")
    config = _derived(code, code.ModelArgs)
    if family in TEXT:
        text = family_config(TEXT[family])
        config["text_config"] = text.get("text_config", text)
    for name, value in HINTS.get(family, {}).items():
        part = config
        *path, last = name.split(".")
        for step in path:
            part = part.setdefault(step, {})
        if value is ...:
            part.pop(last, None)
        else:
            part[last] = value
    config["model_type"] = family
    return config


def _derived(code: Any, arguments: type) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for field in dataclasses.fields(arguments):
        nested = _nested(code, field)
        if nested is not None:
            config[field.name] = _derived(nested[0], nested[1])
        elif field.name in SMALL:
            config[field.name] = SMALL[field.name]
        elif field.name == "text_config":
            continue
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            config[field.name] = _plain(field)
    config.pop("model_type", None)
    return config


def _nested(code: Any, field: dataclasses.Field[Any]) -> tuple[Any, type] | None:
    """The arguments of a part, and the module that they are in."""
    if field.name != "text_config":
        return None
    for one in _members(field.type):
        if dataclasses.is_dataclass(one):
            return importlib.import_module(one.__module__), one
    for name in ("TextArgs", "TextConfig", "TextModelArgs"):
        if hasattr(code, name):
            return code, getattr(code, name)
    return None


def _members(kind: Any) -> Iterable[Any]:
    """What a type may be: the members of a union, or itself."""
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Union else (kind,)


def _plain(field: dataclasses.Field[Any]) -> Any:
    kind = next((k for k in _members(field.type) if k is not type(None)), str)
    if kind in (int, float, bool):
        return kind(1)
    if kind is str:
        return ""
    if type(None) in _members(field.type) or kind is Any or not isinstance(kind, type):
        return None if typing.get_origin(kind) is None else typing.get_origin(kind)()
    return kind()
