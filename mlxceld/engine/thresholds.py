"""The lengths at which a model's attention changes, and a way to make them short for a probe.

Windows, chunks and block-sparse selections change what a token sees once a prompt is longer than
they are. A probe shorter than that proves nothing of it, and one as long as a window of 4,096
tokens would take minutes. So for a probe the numbers are lowered where the model's code looks them
up: in its modules and in the arguments that they keep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from typing import Any

_TOKENS = re.compile(
    r"window(_size)?$|(attention|local|index)_chunk_size$|^chunk_size$|index_topk$|window_length$"
)
"""Names of numbers of tokens."""

_BLOCK = re.compile(r"^(?!attn_res_).*block_size$")
"""Names of the tokens of a block of sparse attention."""

_BLOCKS = re.compile(r"(topk|local|num)_blocks$|num_local_blocks$")
"""Names of the blocks that one token sees."""

_LOW_TOKENS = 24
_LOW_BLOCK = 8
_LOW_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number ``value`` that ``owner`` keeps as ``name``; ``low`` is what a probe puts there."""

    owner: Any
    name: str
    value: int
    low: int

    @property
    def is_block(self) -> bool:
        """Whether the number counts the tokens of a block."""
        return bool(_BLOCK.search(self.name))


def thresholds(module: Any) -> list[Threshold]:
    """The numbers of a model that say at which length its attention changes."""
    found = []
    for owner in _owners(module):
        for name, value in list(vars(owner).items()):
            low = _low(name)
            if low is not None and type(value) is int and value > 0:
                found.append(Threshold(owner, name, value, min(value, low)))
    return found


def longest(found: list[Threshold]) -> int:
    """Tokens after which nothing changes any more: the longest window, or all blocks together."""
    blocks: dict[int, int] = {}
    counts: dict[int, int] = {}
    most = 0
    for one in found:
        if one.is_block:
            blocks[id(one.owner)] = max(blocks.get(id(one.owner), 0), one.value)
        elif _BLOCKS.search(one.name):
            counts[id(one.owner)] = max(counts.get(id(one.owner), 0), one.value)
        else:
            most = max(most, one.value)
    spans = [size * counts[owner] for owner, size in blocks.items() if owner in counts]
    return max([most, *spans])


@contextmanager
def lowered(found: list[Threshold]) -> Iterator[None]:
    """Within it the model's attention changes after some 24 tokens; then all is as before."""
    try:
        for one in found:
            object.__setattr__(one.owner, one.name, one.low)
        yield
    finally:
        for one in found:
            object.__setattr__(one.owner, one.name, one.value)


def _low(name: str) -> int | None:
    if _BLOCK.search(name):
        return _LOW_BLOCK
    if _BLOCKS.search(name):
        return _LOW_BLOCKS
    return _LOW_TOKENS if _TOKENS.search(name) else None


def _owners(module: Any) -> Iterator[Any]:
    """A model's modules and the arguments that they keep, each once."""
    seen: set[int] = set()
    waiting = list(module.modules())
    while waiting:
        owner = waiting.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        yield owner
        waiting += [value for value in vars(owner).values() if _is_arguments(value)]


def _is_arguments(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__")
