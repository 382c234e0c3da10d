"""Who reads its beginning from the pool, together with others, and who from a copy of its own.

Measured on a CPU: two rows or more that share some hundred tokens decode faster over one shared
copy, and far less is copied when they are admitted; a row that shares with nobody is faster on its
own copy, which the fused kernel reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mlxceld.kv.shared_prefix import common_blocks

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence

WORTH_READING_TOGETHER = 128
"""Tokens that a row must have in common with another one to read them from the pool with it."""


def alone(computing: Iterable[Sequence], in_flight: Iterable[Sequence]) -> list[Sequence]:
    """The sequences in prefill that adopted what nobody else reads.

    Those that others follow stay as they are: what they share comes with those others.
    """
    readers = [sequence for sequence in in_flight if sequence.table]
    return [
        sequence
        for sequence in computing
        if sequence.table
        and not sequence.followers
        and all(_in_common(sequence, r) < WORTH_READING_TOGETHER for r in readers)
    ]


def reads_along(leader: Sequence, followers: Iterable[Sequence]) -> bool:
    """Whether a sequence that has computed a beginning for others should read it with them.

    Not for a small part of it: what is left in its own row would be moved for nothing.
    """
    shared = max((follower.shared_tokens for follower in followers), default=0)
    return shared >= WORTH_READING_TOGETHER and 2 * shared >= len(leader.prompt)


def _in_common(sequence: Sequence, other: Sequence) -> int:
    """Tokens of the blocks that two sequences both begin with; none with itself."""
    if sequence is other:
        return 0
    blocks = common_blocks(sequence.table, other.table)
    return blocks * sequence.paged_tokens // len(sequence.table)
