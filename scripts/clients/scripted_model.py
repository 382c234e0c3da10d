"""Tiny models that write given texts: an n-gram table in the weights of mlx-lm's own classes.

A client's tool loop needs an answer that calls a tool, and then one that does not. Such a model
gives them without training and without a stand-in for the engine: it is loaded, batched, cached
and sampled as any other. It looks up its last few tokens in a table, and makes the one that follows
there certain.

How the weights do it, with one attention layer:

- every token has a code of random signs; the embedding writes it into the first block of the
  hidden state, and a 1 into a place of its own;
- each head attends to exactly the token some places back: keys are constant, and the queries are
  constants turned so that the rotary scores peak at that distance. It copies that token's code
  into a block of its own;
- each hidden unit of the feed-forward part answers to one entry of the table: it fires where all
  the entry's codes stand in their blocks, and writes the code of the token that follows;
- the head compares what was written with all codes. Where no unit fired, the turn ends; where a
  grammar forbids that, the constants make JSON end soon.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import llama, qwen3_next
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

PAGEABLE, HYBRID = "llama", "qwen3_next"
"""One whose attention cache is kept in blocks, and one with recurrent layers."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
END = "<|im_end|>"
TURN_OPENING = "<|im_start|>assistant\n"

PLACES = (0, 1, 2, 3, 5)
"""The tokens that are looked up, by how far back they stand.

``TURN_OPENING`` and the end of the turn before it are five tokens: the sixth from the end is the
last of what that turn said.
"""

VOCAB_SIZE = 8192

Table = dict[tuple[int | None, ...], int]
Array = np.ndarray[Any, Any]

_CODE = 32
_HIDDEN = (len(PLACES) + 2) * _CODE
_OUT, _ONE = len(PLACES) * _CODE, (len(PLACES) + 1) * _CODE
_THETA = 10_000.0
_EPS = 1e-6
_FIRED = 30.0
_LOUDNESS, _OUTWEIGHS = 0.01, 10.0
_PREFERRED = (END, '"', "}", "]", ",", ":", "{", "[", " ", "0", "t", "f", "n")
"""What is written where nothing fired, by preference: these end a JSON value soon."""


def write_scripted_model(
    folder: Path,
    script: Mapping[str, str],
    *,
    family: str = PAGEABLE,
    chat_template: str,
    context_length: int = 131_072,
) -> Path:
    """Write a model folder that answers by ``script``; returns the folder.

    Each key of ``script`` is the last word of a turn, with the space before it; the value is the
    answer to a prompt whose last turn ends so. ``""`` stands for all others. Raises ValueError
    for a script whose next token the last ones do not tell.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(script)
    table = _table(tokenizer, script)
    config = _config(family, tokenizer.get_vocab_size(), len(table), context_length)
    weights = _weights(config, tokenizer, table)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
        "chat_template": chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    return folder


def _tokenizer(script: Mapping[str, str]) -> Tokenizer:
    """Byte-level BPE, learned from Python's own help; markers are tokens, as in most models."""
    words = [TURN_OPENING.removeprefix("<|im_start|>"), *script]
    corpus = [*topics.values(), *script.values(), *(f"{word}\n" for word in words * 100)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(MARKERS),
        show_progress=False,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in MARKERS])
    return tokenizer


def _table(tokenizer: Tokenizer, script: Mapping[str, str]) -> Table:
    """What is looked up, a token or None (any) a place, and the token that follows."""
    table: Table = {}
    opening = tokenizer.encode(f"{END}\n{TURN_OPENING}").ids
    if len(opening) != max(PLACES):
        raise ValueError(f"{TURN_OPENING!r} has to be {max(PLACES)} tokens with what is before it")
    for last_word, answer in script.items():
        before = tokenizer.encode(last_word).ids or [None]
        if len(before) != 1:
            raise ValueError(f"{last_word!r} is not one token")
        text = [*before, *opening, *tokenizer.encode(answer + END).ids]
        for place in range(len(opening) + 1, len(text)):
            known = tuple(text[place - 1 - back] for back in PLACES)
            if table.setdefault(known, text[place]) != text[place]:
                raise ValueError(f"the last tokens do not tell what follows in {answer!r}")
    return table


def _config(family: str, vocab_size: int, units: int, context_length: int) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": family,
        "vocab_size": vocab_size,
        "hidden_size": _HIDDEN,
        "intermediate_size": units,
        "num_hidden_layers": 1,
        "num_attention_heads": len(PLACES) - 1,
        "num_key_value_heads": 1,
        "head_dim": _CODE,
        "rms_norm_eps": _EPS,
        "rope_theta": _THETA,
        "max_position_embeddings": context_length,
        "tie_word_embeddings": False,
    }
    if family == PAGEABLE:
        return config
    if family != HYBRID:
        raise ValueError(f"unknown family {family!r}: {PAGEABLE!r} or {HYBRID!r}")
    return config | {
        "num_hidden_layers": 2,
        "full_attention_interval": 2,
        "partial_rotary_factor": 1.0,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "num_experts": 0,
        "num_experts_per_tok": 0,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 0,
        "moe_intermediate_size": 0,
        "mlp_only_layers": [],
    }


def _weights(config: dict[str, Any], tokenizer: Tokenizer, table: Table) -> dict[str, mx.array]:
    family = {PAGEABLE: llama, HYBRID: qwen3_next}[config["model_type"]]
    mx.random.seed(0)
    model = family.Model(family.ModelArgs.from_dict(config))
    weights = {name: value.astype(mx.float32) for name, value in tree_flatten(model.parameters())}
    codes = _codes(config["vocab_size"])
    last = config["num_hidden_layers"] - 1
    for layer in range(last):
        # Recurrent layers keep and hand on a state of their own, but change nothing.
        for part in ("linear_attn.out_proj", "mlp.down_proj"):
            name = f"model.layers.{layer}.{part}.weight"
            weights[name] = mx.zeros_like(weights[name])
    attention, mlp = f"model.layers.{last}.self_attn", f"model.layers.{last}.mlp"
    ours = {
        "model.embed_tokens.weight": _embedding(codes),
        "lm_head.weight": _head(codes, tokenizer),
        # Undone, so that what follows reads the hidden state as it was written.
        f"model.layers.{last}.input_layernorm.weight": np.full(_HIDDEN, _rms(1)),
        f"model.layers.{last}.post_attention_layernorm.weight": np.full(_HIDDEN, _rms(len(PLACES))),
        **{f"{attention}.{name}": value for name, value in _attention(config).items()},
        **{f"{mlp}.{name}": value for name, value in _lookup(codes, table).items()},
    }
    for name, value in ours.items():
        if weights[name].shape != value.shape:
            raise AssertionError(f"{name}: {value.shape} in place of {weights[name].shape}")
        weights[name] = mx.array(value.astype(np.float32))
    mx.eval(weights)
    return weights


def _codes(count: int) -> Array:
    """As many rows of 32 signs, of which any two differ in at least 8.

    They are the second-order Reed-Muller code: a number's bits choose among the products of at
    most two of a place's five bits.
    """
    if count > 1 << 16:
        raise ValueError(f"a vocabulary of {count}: there are {1 << 16} codes")
    bits = np.arange(_CODE)[:, None] >> np.arange(5) & 1
    products = [bits[:, i] * bits[:, j] for i in range(5) for j in range(i + 1)]
    basis = np.array([np.ones(_CODE, int), *products])
    chosen = np.arange(count)[:, None] >> np.arange(16) & 1
    return 1.0 - 2 * (chosen @ basis % 2)


def _rms(blocks: int) -> float:
    """The root mean square of a hidden state with so many codes in it."""
    return float(np.sqrt((blocks * _CODE + 1) / _HIDDEN + _EPS))


def _embedding(codes: Array) -> Array:
    embedding = np.zeros((len(codes), _HIDDEN))
    embedding[:, :_CODE] = codes
    embedding[:, _ONE] = 1
    return embedding


def _head(codes: Array, tokenizer: Tokenizer) -> Array:
    head = np.zeros((len(codes), _HIDDEN))
    head[:, _OUT : _OUT + _CODE] = codes
    for place, text in enumerate(reversed(_PREFERRED), 1):
        (token,) = tokenizer.encode(text).ids
        head[token, _ONE] = 20 * place
    return head


def _attention(config: dict[str, Any]) -> dict[str, Array]:
    """Heads that look a fixed number of tokens back."""
    pairs = _CODE // 2
    turns = _THETA ** (-np.arange(pairs) / pairs)
    # How much the score falls at the nearest rival, at any distance in the context.
    distances = np.arange(1, config["max_position_embeddings"])
    fall = min(
        float(np.sum(1 - np.cos(part[:, None] * turns), axis=1).min())
        for part in np.array_split(distances, 64)
        if len(part)
    )
    loudness = 50 / fall * np.sqrt(_CODE)
    heads = config["num_attention_heads"]
    queries = np.zeros((heads, _CODE))
    for head, places in enumerate(PLACES[1:]):
        back = places * turns
        queries[head] = np.concatenate([np.cos(back), -np.sin(back)])
    keys = np.concatenate([np.ones(pairs), np.zeros(pairs)])
    k_proj = np.zeros((_CODE, _HIDDEN))
    k_proj[:, _ONE] = keys
    v_proj = np.zeros((_CODE, _HIDDEN))
    v_proj[:, :_CODE] = np.eye(_CODE)
    o_proj = np.zeros((_HIDDEN, heads * _CODE))
    o_proj[_CODE : (heads + 1) * _CODE] = np.eye(heads * _CODE)
    weights = {"k_proj.weight": k_proj, "v_proj.weight": v_proj, "o_proj.weight": o_proj}
    if config["model_type"] == PAGEABLE:
        q_proj = np.zeros((heads * _CODE, _HIDDEN))
        q_proj[:, _ONE] = loudness * queries.ravel()
        return weights | {"q_proj.weight": q_proj}
    # Queries stand beside their gates, which are opened, and are scaled by their norm.
    q_proj = np.zeros((heads, 2, _CODE, _HIDDEN))
    q_proj[:, 0, :, _ONE] = queries
    q_proj[:, 1, :, _ONE] = 60
    norm = np.full(_CODE, np.sqrt(0.5))
    return weights | {
        "q_proj.weight": q_proj.reshape(-1, _HIDDEN),
        "q_norm.weight": loudness * norm,
        "k_norm.weight": norm,
    }


def _lookup(codes: Array, table: Table) -> dict[str, Array]:
    """One unit an entry.

    Where two entries hold, the one with more tokens has to outweigh the other by far: their codes
    add up, and a token that is near to both would be sampled now and then.
    """
    # Two codes agree in at most 24 of 32 places, and their product is at most a half.
    steepness = 4 * _FIRED
    gate = np.zeros((len(table), _HIDDEN))
    up = np.zeros((len(table), _HIDDEN))
    down = np.zeros((_HIDDEN, len(table)))
    for unit, (known, following) in enumerate(table.items()):
        held = [(block, token) for block, token in enumerate(known) if token is not None]
        for block, token in held:
            gate[unit, block * _CODE : (block + 1) * _CODE] = steepness * codes[token] / _CODE
        gate[unit, _ONE] = steepness * (1 / 4 - len(held))
        up[unit, _ONE] = 1
        down[_OUT : _OUT + _CODE, unit] = (
            _LOUDNESS * _OUTWEIGHS ** len(held) / _FIRED * codes[following]
        )
    return {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down}
