"""What the block store holds and hands out, and what it asks of the pool."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mlxceld.prompt_cache.key import Bucket

Seal = Callable[[int, int], "Sequence[int] | None"]
"""Copies tokens ``start`` to ``stop`` into new blocks; None, without effect, if they do not fit."""


class Blocks(Protocol):
    """What the store asks of the pool: references to blocks, never what is in them."""

    block_size: int
    bytes_per_block: int

    def retain(self, blocks: Sequence[int]) -> None:
        """Add a reference to each block."""

    def release(self, blocks: Sequence[int]) -> object:
        """Drop a reference to each block; without any it is free."""

    def refcount(self, block: int) -> int:
        """The number of references to a block."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class BlockEntry:
    """One stored prefix: its tokens and the blocks that hold them, the last perhaps in part.

    ``hashes`` is the chain of the blocks, one each. Times are readings of the store's clock;
    ``hits`` counts adoptions, whole or in part.
    """

    bucket: Bucket
    session: str
    tokens: array[int]
    table: tuple[int, ...]
    hashes: tuple[bytes, ...]
    created: float
    last_used: float
    hits: int = 0
    client: str | None = None
    origin: str = "completion"
    pins: int = 0


@dataclass(frozen=True, slots=True)
class AdoptedBlocks:
    """Stored tokens that a request begins with: ``blocks`` hold at least ``matched`` of them.

    The adopter has a reference to each of the blocks, and releases it.
    """

    entry: BlockEntry
    matched: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChainStats:
    """Blocks by their hashes, which tell them apart by all that comes before them too.

    ``total_blocks_stored`` counts a block for each entry that has it, ``unique_block_hashes``
    once; ``apc_active_entries`` have a chain.
    """

    total_blocks_stored: int
    unique_block_hashes: int
    apc_active_entries: int
