"""How much memory a model's past takes, read off its own caches after a forward pass of one token.

Nothing is computed: MLX is lazy, and an array that was never evaluated knows its shape and its
type already. So this works on a model whose weights were never read, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from mlxceld.models.caches.adapter import array_bytes
from mlxceld.models.caches.kinds import CacheKind
from mlxceld.models.caches.registry import adapter_of, kind_of, leaves

_MORE = 512
"""Tokens, a whole number of the steps in which mlx-lm's caches make room."""


@dataclass(frozen=True, slots=True)
class LeafSize:
    """What one cache takes for one sequence, in bytes.

    ``token_bytes`` for each token it remembers, of which there are ``window`` at most if that is
    not None; ``fixed_bytes`` however many tokens there were.
    """

    kind: CacheKind
    token_bytes: int = 0
    fixed_bytes: int = 0
    window: int | None = None

    def bytes_at(self, tokens: int) -> int:
        """Bytes after ``tokens`` tokens, at least one."""
        kept = tokens if self.window is None else min(tokens, self.window)
        return self.fixed_bytes + kept * self.token_bytes


@dataclass(frozen=True, slots=True)
class StateSize:
    """What all of a model's caches take for one sequence, one item a cache, composite ones taken
    apart.
    """

    leaves: tuple[LeafSize, ...]

    @property
    def pageable(self) -> bool:
        """Whether every cache keeps every token, so that any prefix can be taken from them."""
        return all(leaf.kind is CacheKind.PAGEABLE for leaf in self.leaves)

    @property
    def bytes_per_token(self) -> int:
        """Bytes by which the state grows with every token, for ever."""
        return sum(leaf.token_bytes for leaf in self.leaves if leaf.window is None)

    @property
    def fixed_bytes(self) -> int:
        """Bytes that do not depend on how many tokens there were."""
        return sum(leaf.fixed_bytes for leaf in self.leaves)

    @property
    def window_bytes(self) -> int:
        """Bytes of all windows, once they are full."""
        return sum(leaf.token_bytes * (leaf.window or 0) for leaf in self.leaves)

    def bytes_at(self, tokens: int) -> int:
        """Bytes of the whole state after ``tokens`` tokens: one entry of a cache."""
        return sum(leaf.bytes_at(tokens) for leaf in self.leaves)

    def snapshot_bytes_at(self, tokens: int) -> int:
        """Bytes of what is not kept in the block pool."""
        return sum(
            leaf.bytes_at(tokens) for leaf in self.leaves if leaf.kind is not CacheKind.PAGEABLE
        )

    def describe(self) -> str:
        """The size in words, for the log."""
        parts = [f"{self.bytes_per_token:,} bytes a token"]
        if self.fixed_bytes:
            parts.append(f"{self.fixed_bytes:,} bytes of fixed state")
        if self.window_bytes:
            widest = max(leaf.window or 0 for leaf in self.leaves)
            parts.append(f"{self.window_bytes:,} bytes of windows (up to {widest:,} tokens)")
        return ", ".join(parts)


def measure(module: Any) -> StateSize:
    """The size of a model's state.

    The model runs over one token, unevaluated. Where it has caches of a class that is not known, it
    runs over more, and what these add is taken for what every token does; room that such a cache
    makes beforehand counts as fixed.
    """
    row = make_prompt_cache(module)
    module(mx.array([[0]]), cache=row)
    alone = list(leaves(row))
    if all(kind_of(leaf) is not CacheKind.OPAQUE for leaf in alone):
        return StateSize(tuple(_size_of(leaf) for leaf in alone))
    longer = make_prompt_cache(module)
    module(mx.zeros((1, 1 + _MORE), mx.int32), cache=longer)
    return StateSize(
        tuple(
            _size_between(one, two) if kind_of(one) is CacheKind.OPAQUE else _size_of(one)
            for one, two in zip(alone, leaves(longer), strict=True)
        )
    )


def module_of(config: Mapping[str, Any], dtype: mx.Dtype) -> Any:
    """The model of a config.json with weights of ``dtype`` that are never drawn.

    Raises ImportError for a family that mlx-lm does not know.
    """
    architecture = import_module(f"mlx_lm.models.{config['model_type']}")
    module = architecture.Model(architecture.ModelArgs.from_dict(dict(config)))
    module.set_dtype(dtype)
    return module


def _size_of(leaf: Any) -> LeafSize:
    """From a cache that holds one token."""
    adapter = adapter_of(leaf)
    return LeafSize(
        kind_of(leaf),
        adapter.token_bytes(leaf),
        adapter.fixed_bytes(leaf),
        window=adapter.window(leaf),
    )


def _size_between(one: Any, two: Any) -> LeafSize:
    first, second = array_bytes(one.state), array_bytes(two.state)
    token_bytes = max(0, second - first) // _MORE
    return LeafSize(CacheKind.OPAQUE, token_bytes, first - token_bytes)
