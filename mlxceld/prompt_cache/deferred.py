"""Memory that stays when entries go, since running requests read it too."""

from __future__ import annotations

from collections.abc import Sequence

from mlxceld.prompt_cache.block_entry import Blocks
from mlxceld.prompt_cache.holders import Holders


def held_elsewhere(
    pool: Blocks | None, holders: Holders[int], tables: Sequence[Sequence[int]]
) -> int:
    """Bytes of blocks that leave a store with these tables and have other owners besides."""
    if pool is None:
        return 0
    going: Holders[int] = Holders(tables)
    blocks = {block for table in tables for block in table}
    held = sum(
        going.count(block) == holders.count(block) and pool.refcount(block) > holders.count(block)
        for block in blocks
    )
    return held * pool.bytes_per_block
