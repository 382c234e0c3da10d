"""Which rows of a batch begin with which blocks of the pool.

Rows whose block tables begin alike form a *segment*: blocks that are read once for all of them.
Tables are a tree: rows that share a whole conversation share its beginning with others too, so a
row's beginning is a *chain* of segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from mlxceld.kv.pool import BlockPool, Part
from mlxceld.kv.slabs import KeysAndValues

Table = Sequence[int]


@dataclass(frozen=True, slots=True)
class Segment:
    """Whole blocks that rows ``first`` to ``last`` (not included) have in common, in order."""

    blocks: tuple[int, ...]
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Rows ``first`` to ``last`` (not included) begin with these segments, given by their index."""

    segments: tuple[int, ...]
    first: int
    last: int


def order_by_table(tables: Sequence[Table]) -> list[int]:
    """An order of rows in which those that begin alike are neighbours; stable otherwise."""
    return sorted(range(len(tables)), key=lambda row: tuple(tables[row]))


def common_blocks(one: Table, other: Table) -> int:
    """How many blocks two tables have in common at their beginning."""
    for at, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return at
    return min(len(one), len(other))


class SharedPrefix:
    """The beginnings of a batch's rows, read from the pool where they lie.

    ``tables[i]`` are the whole blocks that row i begins with, perhaps none; rows that begin alike
    must be neighbours. Valid until the pool moves blocks. Whoever made the tables keeps a
    reference to each block as long as this is in use.
    """

    def __init__(self, pool: BlockPool, tables: Sequence[Table]) -> None:
        self._pool = pool
        size = pool.block_size
        self.lengths = [len(table) * size for table in tables]
        self.longest = max(self.lengths, default=0)
        self.segments: list[Segment] = []
        paths: list[list[int]] = [[] for _ in tables]
        self._split(tables, 0, len(tables), 0, paths)
        self.chains = _chains(paths)
        self._parts: list[list[Part]] = [
            pool.parts(segment.blocks, len(segment.blocks) * size) for segment in self.segments
        ]
        self._row_parts: list[list[Part]] | None = None
        self._tables = [tuple(table) for table in tables]
        self.tail_mask: mx.array | None = None

    def __bool__(self) -> bool:
        return bool(self.segments)

    def views(self, layer: int, segment: int) -> list[KeysAndValues]:
        """A segment's keys and values in one layer: ``[kv_heads, n, width]`` a run of blocks.

        To be gone before the next write to the pool.
        """
        return [slab.view(layer, start, stop) for slab, start, stop in self._parts[segment]]

    def gathered(self, layer: int) -> KeysAndValues:
        """Every row's beginning in one layer, copied: ``[rows, kv_heads, longest, width]``.

        Shorter ones stand at the end, behind zeros.
        """
        keys: list[mx.array] = []
        values: list[mx.array] = []
        for row, parts in enumerate(self._rows()):
            pieces = [slab.view(layer, start, stop) for slab, start, stop in parts]
            missing = self.longest - self.lengths[row]
            shape = self._pool.shapes[layer]
            for into, width, dtype, mine in (
                (keys, shape.key_width, shape.key_dtype, [k for k, _ in pieces]),
                (values, shape.value_width, shape.value_dtype, [v for _, v in pieces]),
            ):
                if missing:
                    mine = [mx.zeros([shape.kv_heads, missing, width], dtype), *mine]
                into.append(mx.concatenate(mine, axis=1) if len(mine) > 1 else mine[0])
        return mx.stack(keys), mx.stack(values)

    def _rows(self) -> list[list[Part]]:
        if self._row_parts is None:
            size = self._pool.block_size
            self._row_parts = [self._pool.parts(table, len(table) * size) for table in self._tables]
        return self._row_parts

    def _split(
        self, tables: Sequence[Table], first: int, last: int, depth: int, paths: list[list[int]]
    ) -> None:
        """Add the segments of rows ``first`` to ``last`` from their block ``depth`` on."""
        row = first
        while row < last:
            table = tables[row]
            end = row + 1
            if len(table) > depth:
                while end < last and tables[end][depth : depth + 1] == table[depth : depth + 1]:
                    end += 1
                common = min(common_blocks(table[depth:], t[depth:]) for t in tables[row:end])
                for member in range(row, end):
                    paths[member].append(len(self.segments))
                self.segments.append(Segment(tuple(table[depth : depth + common]), row, end))
                self._split(tables, row, end, depth + common, paths)
            row = end


def _chains(paths: Sequence[Sequence[int]]) -> list[Chain]:
    """Neighbouring rows with the same segments as one."""
    chains: list[Chain] = []
    for row, path in enumerate(paths):
        if chains and chains[-1].segments == tuple(path):
            chains[-1] = Chain(tuple(path), chains[-1].first, row + 1)
        else:
            chains.append(Chain(tuple(path), row, row + 1))
    return chains
