"""The memory that stored prefixes share: sealed blocks of keys and values over all layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import mlx.core as mx

from mlxceld.kv.blocks import BlockAllocator
from mlxceld.kv.free_runs import Run
from mlxceld.kv.memory import release_freed
from mlxceld.kv.slabs import KeysAndValues, LayerShape, Slab, copied


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A reading of the pool; a block spans all pageable layers and counts once.

    ``blocks_shared`` have two owners or more. ``bytes_reserved`` is what the slabs occupy,
    ``bytes_in_use`` the part of it in live blocks, ``block_budget`` how many blocks may live where
    nothing of the budget is held outside the pool.
    """

    block_size: int
    blocks_allocated: int
    blocks_live: int
    blocks_free: int
    blocks_shared: int
    bytes_reserved: int
    bytes_in_use: int
    block_budget: int


class Part(NamedTuple):
    """Tokens ``start`` to ``stop`` of a slab."""

    slab: Slab
    start: int
    stop: int


class BlockPool:
    """Immutable blocks of ``block_size`` tokens, counted by owner, in slabs that come and go.

    A block is written once, by :meth:`seal`, and never again while it has an owner. Its owner is
    whoever keeps its id in a table; the pool knows the number of owners and no token counts: a
    last block that is only partly filled looks like any other.

    Used by the thread that owns MLX. :meth:`seal` and :meth:`compact` write, and must only be
    called at a pipeline break: with no step in flight, no view from :meth:`views` alive and no
    result of :meth:`read` unevaluated, for else each slab written to is copied whole.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        block_size: int = 16,
        slab_tokens: int = 2048,
        *,
        max_bytes: int,
        first_slab_tokens: int | None = None,
    ) -> None:
        """``shapes`` is one a pageable cache, ``slab_tokens`` rounds down to whole blocks.

        With ``first_slab_tokens`` slabs begin as small as that, and each new one is as large as
        all before it, up to ``slab_tokens``; more where more is stored at once. ``max_bytes``
        bounds what the slabs occupy. Raises ValueError for sizes that make no pool.
        """
        if block_size < 1:
            raise ValueError(f"block_size: expected at least 1 token, got {block_size}")
        if slab_tokens < block_size:
            raise ValueError(
                f"slab_tokens: expected at least one block of {block_size}, got {slab_tokens}"
            )
        self.shapes = tuple(shapes)
        self.block_size = block_size
        self.bytes_per_block = block_size * sum(shape.token_bytes for shape in self.shapes)
        if not self.bytes_per_block:
            raise ValueError("shapes: expected at least one layer that keeps keys or values")
        self._max_bytes = max_bytes
        self._outside = 0
        self._allocator = BlockAllocator(slab_tokens // block_size, self._budget(max_bytes))
        first = slab_tokens if first_slab_tokens is None else first_slab_tokens
        self._first = max(1, min(first, slab_tokens) // block_size)
        self._slabs: dict[int, Slab] = {}

    def seal(self, rows: Sequence[KeysAndValues], start: int, stop: int) -> list[int] | None:
        """Copy tokens ``start`` to ``stop`` of a row into new blocks, with one owner each.

        ``rows`` are the keys and values of each layer, ``[1, kv_heads, n, width]`` with
        ``n >= stop``. Returns one id a block in the tokens' order, the last perhaps partly
        filled; None, with no effect, when they do not fit into the budget. Waits until they are
        written. Raises ValueError when a layer is not of the pool's shape.
        """
        self._require_shapes(rows, start, stop)
        blocks = self._allocate(self._blocks_for(stop - start))
        if not blocks:
            return blocks
        parts = self.parts(blocks, stop - start)
        try:
            for layer, (keys, values) in enumerate(rows):
                at = start
                for slab, first, until in parts:
                    end = at + until - first
                    slab.write(layer, first, keys[0, :, at:end], values[0, :, at:end])
                    at = end
            mx.eval([slab.arrays(i) for slab, *_ in parts for i in range(len(rows))])
        except BaseException:
            self._allocator.release(blocks)
            raise
        return blocks

    def read(self, blocks: Sequence[int], tokens: int) -> list[KeysAndValues]:
        """A copy of the first ``tokens`` tokens of a table: ``[1, kv_heads, tokens, width]``.

        One pair a layer, unevaluated: the caller evaluates them before the next :meth:`seal`, and
        from then on they pin nothing of the pool. Raises BlockError for a block without owner
        and ValueError for more tokens than the blocks hold.
        """
        parts = self.parts(blocks, tokens)
        result = []
        for layer, shape in enumerate(self.shapes):
            if parts:
                views = [slab.view(layer, start, stop) for slab, start, stop in parts]
                keys = copied([view[0] for view in views])
                values = copied([view[1] for view in views])
            else:
                keys = mx.zeros([shape.kv_heads, 0, shape.key_width], shape.key_dtype)
                values = mx.zeros([shape.kv_heads, 0, shape.value_width], shape.value_dtype)
            result.append((keys[None], values[None]))
        return result

    def views(self, layer: int, blocks: Sequence[int], tokens: int) -> list[KeysAndValues]:
        """The first ``tokens`` tokens of a table in one layer, where they lie.

        One pair ``[kv_heads, n, width]`` a run of neighbouring blocks, in the tokens' order. The
        views must be gone before the next :meth:`seal` or :meth:`compact`. Raises as
        :meth:`read`.
        """
        parts = self.parts(blocks, tokens)
        return [slab.view(layer, start, stop) for slab, start, stop in parts]

    def parts(self, blocks: Sequence[int], tokens: int) -> list[Part]:
        """Where the first ``tokens`` tokens of a table lie, in their order; until blocks move.

        Raises as :meth:`read`.
        """
        held = len(blocks) * self.block_size
        if not 0 <= tokens <= held:
            raise ValueError(f"tokens: expected 0 to {held} in {len(blocks)} blocks, got {tokens}")
        self._allocator.require_live(blocks)
        count = self._blocks_for(tokens)
        parts = [self._part(run) for run in self._allocator.runs(blocks[:count])]
        if parts:
            unused = count * self.block_size - tokens
            parts[-1] = parts[-1]._replace(stop=parts[-1].stop - unused)
        return parts

    def retain(self, blocks: Sequence[int]) -> None:
        """One owner more for each block; raises BlockError, with no effect, if one has none."""
        self._allocator.retain(blocks)

    def release(self, blocks: Sequence[int]) -> list[int]:
        """One owner less for each block; returns those that nobody owns any more.

        Raises BlockError, with no effect, for a block that has not so many owners.
        """
        return self._allocator.release(blocks)

    def refcount(self, block: int) -> int:
        """The number of owners of a block."""
        return self._allocator.refcount(block)

    def resize(self, max_bytes: int) -> int:
        """Change the budget; returns the bytes given back to the system at once.

        Live blocks stay, also beyond the budget: nothing new is sealed until enough has been
        released. Slabs that are needed for few blocks go with :meth:`compact`.
        """
        self._allocator.max_blocks = self._budget(max_bytes)
        self._max_bytes = max_bytes
        self.set_aside(self._outside)
        return self.give_back()

    def set_aside(self, nbytes: int) -> None:
        """Leave a part of the budget to what others hold, until told otherwise."""
        self._outside = nbytes
        self._allocator.max_blocks = self._budget(max(0, self._max_bytes - nbytes))

    def room(self) -> int:
        """Bytes of the budget that are neither reserved nor set aside; 0 where it is exceeded."""
        reserved = self._allocator.allocated * self.bytes_per_block
        return max(0, self._max_bytes - self._outside - reserved)

    def give_back(self, *, spare: bool = True) -> int:
        """Free the slabs that hold no live block; returns their bytes.

        One of them is kept as a ``spare``, so that storing and dropping in turn does not allocate
        each time, unless the budget is exceeded.
        """
        allocator = self._allocator
        # The largest comes last and is the one that may stay.
        empty = sorted(allocator.removable_slabs(), key=lambda slab: self._slabs[slab].tokens)
        freed = 0
        for position, slab in enumerate(empty, start=1):
            within = allocator.allocated <= allocator.max_blocks
            if spare and position == len(empty) and within:
                break
            allocator.remove_slab(slab)
            freed += self._slabs.pop(slab).nbytes
        if freed:
            release_freed()
        return freed

    def compact(self) -> dict[int, int]:
        """Move live blocks together so that sparse slabs hold none; returns old ids to new.

        Every owner's table must be translated before anything else is done with the pool;
        counts move with the blocks. :meth:`give_back` then frees the slabs. On an error nothing
        has moved.
        """
        allocator = self._allocator
        moves = allocator.plan_compaction()
        targets = [self._part(run) for run in allocator.runs(list(moves.values()))]
        olds = iter(moves)
        sources = []
        for target in targets:
            count = (target.stop - target.start) // self.block_size
            sources.append([self._part(run) for run in allocator.runs(list(islice(olds, count)))])
        for layer in range(len(self.shapes)):
            # A layer at a time: the copies under way are small beside the slabs that go.
            self._copy_layer(layer, sources, targets)
        allocator.move(moves)
        return moves

    def stats(self) -> PoolStats:
        """The numbers of now."""
        allocator = self._allocator
        return PoolStats(
            block_size=self.block_size,
            blocks_allocated=allocator.allocated,
            blocks_live=allocator.live,
            blocks_free=allocator.free,
            blocks_shared=allocator.shared,
            bytes_reserved=allocator.allocated * self.bytes_per_block,
            bytes_in_use=allocator.live * self.bytes_per_block,
            block_budget=self._budget(self._max_bytes),
        )

    def check(self, owners: Iterable[Sequence[int]]) -> None:
        """Recount everything; raises AssertionError with the numbers that do not agree.

        ``owners`` is every table of block ids there is.
        """
        self._allocator.check(owners)
        reserved = sum(slab.nbytes for slab in self._slabs.values())
        if reserved != self.stats().bytes_reserved:
            raise AssertionError(
                f"pool: slabs hold {reserved} bytes, {self.stats().bytes_reserved} are counted"
            )

    def _budget(self, max_bytes: int) -> int:
        if max_bytes < 0:
            raise ValueError(f"max_bytes: expected 0 or more, got {max_bytes}")
        return max_bytes // self.bytes_per_block

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _allocate(self, count: int) -> list[int] | None:
        """Blocks from the slabs there are, and from new ones as far as the budget goes."""
        allocator = self._allocator
        room = allocator.max_blocks - allocator.allocated
        if allocator.live + count > allocator.max_blocks:
            return None
        missing, allocated = count - allocator.free, allocator.allocated
        grown = []
        while missing > 0:
            # As much again as there is, so that little is reserved while little is stored. The last
            # slab below the budget is as small as what is left of it.
            slots = min(allocator.slab_blocks, room, max(count, allocated, self._first))
            grown.append(Slab(self.shapes, slots * self.block_size))
            missing -= slots
            room -= slots
            allocated += slots
        for slab in grown:  # only when memory for all of them was found
            self._slabs[allocator.add_slab(slab.tokens // self.block_size)] = slab
        return allocator.allocate(count)

    def _part(self, run: Run) -> Part:
        start = run.slot * self.block_size
        return Part(self._slabs[run.slab], start, start + run.length * self.block_size)

    def _copy_layer(
        self, layer: int, sources: Sequence[Sequence[Part]], targets: Sequence[Part]
    ) -> None:
        """Copy each list of parts into the one part beside it, evaluated."""
        copies = []
        for parts in sources:
            views = [slab.view(layer, start, stop) for slab, start, stop in parts]
            copies.append((copied([k for k, _ in views]), copied([v for _, v in views])))
            del views  # before anything is written
        mx.eval(copies)
        for (slab, start, _), (keys, values) in zip(targets, copies, strict=True):
            slab.write(layer, start, keys, values)
        mx.eval([slab.arrays(layer) for slab, *_ in targets])

    def _require_shapes(self, rows: Sequence[KeysAndValues], start: int, stop: int) -> None:
        if not 0 <= start <= stop:
            raise ValueError(f"start, stop: expected 0 <= start <= stop, got {start}, {stop}")
        if len(rows) != len(self.shapes):
            raise ValueError(f"rows: expected {len(self.shapes)} layers, got {len(rows)}")
        for layer, (shape, (keys, values)) in enumerate(zip(self.shapes, rows, strict=True)):
            for name, array, width, dtype in (
                ("keys", keys, shape.key_width, shape.key_dtype),
                ("values", values, shape.value_width, shape.value_dtype),
            ):
                fits = (
                    array.ndim == 4
                    and array.shape[2] >= stop
                    and (*array.shape[:2], array.shape[3]) == (1, shape.kv_heads, width)
                )
                if not fits or array.dtype != dtype:
                    raise ValueError(
                        f"rows, layer {layer}, {name}: expected {dtype}"
                        f" [1, {shape.kv_heads}, {stop} or more, {width}],"
                        f" got {array.dtype} {list(array.shape)}"
                    )
