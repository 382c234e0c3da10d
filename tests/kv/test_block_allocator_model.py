"""The allocator against a naive one, step by step through random histories."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mlxceld.kv.blocks import BlockAllocator, BlockError

SLAB_BLOCKS = 6
PICKS = st.randoms(use_true_random=False)


class AllocatorAgainstOracle(RuleBasedStateMachine):
    """The oracle is the tables of the owners, and the slots of each slab."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = BlockAllocator(SLAB_BLOCKS, 20)
        self.max_blocks = 20
        self.tables: list[list[int]] = []
        self.slabs = {self.allocator.add_slab(): SLAB_BLOCKS for _ in range(3)}

    def has_owners(self) -> bool:
        return bool(self.tables)

    @property
    def counts(self) -> Counter[int]:
        return Counter(block for table in self.tables for block in table)

    def free_runs(self) -> dict[int, list[int]]:
        """The lengths of each slab's free runs, found slot by slot."""
        counts = self.counts
        found = {}
        for slab, slots in self.slabs.items():
            text = "".join(".x"[slab * SLAB_BLOCKS + i in counts] for i in range(slots))
            found[slab] = [len(run) for run in text.split("x") if run]
        return found

    @rule(counts=st.lists(st.integers(0, 9) | st.integers(1, 3), min_size=1, max_size=4))
    def allocate(self, counts) -> None:
        for count in counts:
            self.allocate_one(count)

    def allocate_one(self, count: int) -> None:
        before, runs = self.counts, self.free_runs()
        free = sum(map(sum, runs.values()))
        got = self.allocator.allocate(count)
        if count > free or len(before) + count > self.max_blocks:
            assert got is None
            return
        assert got is not None
        assert len(set(got)) == len(got) == count
        assert not before.keys() & set(got)
        taken = self.allocator.runs(got)
        holding = {
            slab: sum(lengths) for slab, lengths in runs.items() if max(lengths, default=0) >= count
        }
        if count and holding:
            assert len(taken) == 1
            assert holding[taken[0].slab] == min(holding.values())
        else:
            lengths = sorted((n for each in runs.values() for n in each), reverse=True)
            fewest = next(k for k in range(len(lengths) + 1) if sum(lengths[:k]) >= count)
            assert len(taken) == fewest
        if got:
            self.tables.append(got)

    @precondition(has_owners)
    @rule(pick=PICKS)
    def retain(self, pick) -> None:
        table = pick.choice(self.tables)
        part = table[: pick.randint(1, len(table))]
        self.allocator.retain(part)
        self.tables.append(list(part))

    @precondition(has_owners)
    @rule(pick=PICKS)
    def release(self, pick) -> None:
        for _ in range(pick.randint(1, len(self.tables))):
            self.release_one(pick)

    def release_one(self, pick: random.Random) -> None:
        table = self.tables.pop(pick.randrange(len(self.tables)))
        pick.shuffle(table)
        keep = pick.choice([0, len(table) // 2])
        if keep:
            self.tables.append(table[:keep])
        freed = self.allocator.release(table[keep:])
        assert sorted(freed) == sorted(set(table[keep:]) - self.counts.keys())

    @rule(pick=PICKS, block=st.integers(-2, 6 * SLAB_BLOCKS), retain=st.booleans())
    def give_a_wrong_id(self, pick, block, retain) -> None:
        owners = self.counts[block]
        blocks = [block] * (owners + 1) + [b for t in self.tables[:1] for b in t]
        pick.shuffle(blocks)
        if not retain:
            with pytest.raises(BlockError, match="owners"):
                self.allocator.release(blocks)
        elif not owners:
            with pytest.raises(BlockError, match=f"block {block}: has no owner"):
                self.allocator.retain(blocks)

    @rule(slots=st.none() | st.integers(1, SLAB_BLOCKS))
    def add_slab(self, slots) -> None:
        if len(self.slabs) < 5:
            slab = self.allocator.add_slab(slots)
            assert slab not in self.slabs
            assert slab <= len(self.slabs)
            self.slabs[slab] = slots or SLAB_BLOCKS

    @rule(slab=st.integers(0, 5))
    def remove_slab(self, slab) -> None:
        if slab in self.slabs.keys() - {block // SLAB_BLOCKS for block in self.counts}:
            self.allocator.remove_slab(slab)
            del self.slabs[slab]
        else:
            with pytest.raises(BlockError, match=f"slab {slab}: "):
                self.allocator.remove_slab(slab)

    @rule(max_blocks=st.integers(8, 40))
    def resize(self, max_blocks) -> None:
        self.allocator.max_blocks = self.max_blocks = max_blocks

    @precondition(has_owners)
    @rule()
    def compact(self) -> None:
        before = self.counts
        used = {block // SLAB_BLOCKS for block in before}
        moves = self.allocator.plan_compaction()
        self.allocator.move(moves)
        self.tables = [[moves.get(block, block) for block in table] for table in self.tables]
        emptied = {block // SLAB_BLOCKS for block in moves}
        assert {block // SLAB_BLOCKS for block in self.counts} == used - emptied
        # Neighbouring sparse slabs are joined: the emptiest left does not fit into the others.
        lives = Counter(block // SLAB_BLOCKS for block in self.counts)
        if len(lives) > 1:
            slab = min(lives, key=lambda s: (lives[s], -s))
            assert lives[slab] > sum(self.slabs[s] - lives[s] for s in lives if s != slab)

    @invariant()
    def the_books_balance(self) -> None:
        counts = self.counts
        allocator = self.allocator
        allocator.check(self.tables)
        assert allocator.allocated == sum(self.slabs.values())
        assert allocator.live == len(counts)
        assert allocator.free == sum(self.slabs.values()) - len(counts)
        assert allocator.shared == sum(count > 1 for count in counts.values())
        assert all(allocator.refcount(block) == counts[block] for block in range(6 * SLAB_BLOCKS))
        used = {block // SLAB_BLOCKS for block in counts}
        assert set(allocator.removable_slabs()) == self.slabs.keys() - used


AllocatorAgainstOracle.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
TestAllocatorAgainstOracle = AllocatorAgainstOracle.TestCase
