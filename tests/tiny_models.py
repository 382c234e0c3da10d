"""Tiny models of every family, written to disk as real model folders that mlx-lm loads unchanged.

The weights are random under a fixed seed: exactness tests need no trained ones. The tokenizer is
a byte-level one without merges, so that every text has exactly as many tokens as UTF-8 bytes.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

FIXTURE = Path(__file__).with_name("tiny_families.json")

VOCAB_SIZE = 320
"""256 bytes, four special tokens, and words that only sampling reaches."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
"""Token ids 256 to 259."""

EOS_ID = 256 + SPECIAL_TOKENS.index("<|im_end|>")

DEFAULT_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nTools:\n"
    "{%- for tool in tools %}\n{{ tool | tojson }}{%- endfor %}<|im_end|>\n{% endif -%}"
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{%- for call in message['tool_calls'] or [] %}"
    "{{ '<tool_call>' + (call['function'] | tojson) + '</tool_call>' }}"
    "{%- endfor %}{{ '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
"""ChatML, with the tools in a system turn of their own."""


def tiny_families() -> list[str]:
    """The names of all families in the fixture, in its order."""
    return list(_families())


def tiny_config(family: str, *, context_length: int | None = None) -> dict[str, Any]:
    """The family's config.json, its vocabulary raised to ``VOCAB_SIZE``."""
    config = copy.deepcopy(_families()[family])
    for part in (config, config.get("text_config", {})):
        if "vocab_size" in part:
            part["vocab_size"] = VOCAB_SIZE
        if context_length is not None and (part is not config or "text_config" not in config):
            part["max_position_embeddings"] = context_length
    config["eos_token_id"] = EOS_ID
    # Transformers, which reads the same file for the tokenizer, refuses some of these as null.
    return {key: value for key, value in config.items() if not _is_default_null(config, key)}


def write_tiny_model(
    folder: Path,
    family: str,
    *,
    seed: int = 0,
    chat_template: str | None = DEFAULT_TEMPLATE,
    context_length: int | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a model folder of ``family``, or of a configuration of one's own, and return it.

    ``chat_template`` None leaves the model without one; ``context_length`` replaces the fixture's
    (families without positions get it in their config too, where loaders look for it).
    """
    folder.mkdir(parents=True, exist_ok=True)
    if config is None:
        config = tiny_config(family, context_length=context_length)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    weights = _random_weights(config, seed)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    write_tiny_tokenizer(folder, chat_template=chat_template)
    return folder


def write_tiny_tokenizer(folder: Path, *, chat_template: str | None = DEFAULT_TEMPLATE) -> None:
    """Write tokenizer.json and tokenizer_config.json of the byte-level tokenizer."""
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
    }
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE without merges: ids 0 to 255 are the bytes, then the special tokens."""
    byte_chars = _byte_characters()
    vocabulary = {byte_chars[byte]: byte for byte in range(256)}
    for token in SPECIAL_TOKENS:
        vocabulary[token] = len(vocabulary)
    space = byte_chars[ord(" ")]
    while len(vocabulary) < VOCAB_SIZE:
        # Unreachable from text without merges; a random model samples them all the same.
        vocabulary[f"{space}w{len(vocabulary)}"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


class TinyModels:
    """Writes each model once; fit for a session-scoped fixture over one temporary folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(
        self,
        family: str,
        *,
        seed: int = 0,
        chat_template: str | None = DEFAULT_TEMPLATE,
        context_length: int | None = None,
    ) -> Path:
        """The folder of this model, written at the first call."""
        variant = json.dumps([seed, chat_template, context_length])
        name = f"{family}-{_short_hash(variant)}" if variant != _PLAIN_VARIANT else family
        target = self._root / name / family
        if not (target / "tokenizer_config.json").exists():
            write_tiny_model(
                target,
                family,
                seed=seed,
                chat_template=chat_template,
                context_length=context_length,
            )
        return target


_PLAIN_VARIANT = json.dumps([0, DEFAULT_TEMPLATE, None])


def _families() -> dict[str, dict[str, Any]]:
    families: dict[str, dict[str, Any]] = json.loads(FIXTURE.read_text())["families"]
    return families


def _is_default_null(config: dict[str, Any], key: str) -> bool:
    arguments = _architecture(config).ModelArgs
    return config[key] is None and getattr(arguments, key, ...) is None


def _architecture(config: dict[str, Any]) -> Any:
    return importlib.import_module(f"mlx_lm.models.{config['model_type']}")


def _random_weights(config: dict[str, Any], seed: int) -> dict[str, mx.array]:
    """The family's own initial weights; what the class leaves at zero is drawn too.

    A parameter of all zeros would switch off the part of the model that it belongs to, and no
    test would notice that part going wrong.
    """
    architecture = _architecture(config)
    mx.random.seed(seed)
    model = architecture.Model(architecture.ModelArgs.from_dict(config))
    weights = {}
    for name, value in tree_flatten(model.parameters()):
        value = value.astype(mx.float32)
        if not mx.any(value != 0).item():
            value = 0.1 * mx.random.normal(value.shape)
        weights[name] = value
    mx.eval(weights)
    return weights


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    characters = [""] * 256
    for byte in printable:
        characters[byte] = chr(byte)
    stand_in = 0x100
    for byte in range(256):
        if not characters[byte]:
            characters[byte] = chr(stand_in)
            stand_in += 1
    return characters


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
