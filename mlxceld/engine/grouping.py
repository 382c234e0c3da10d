"""Who reads its beginning from the pool, together with others, and who from a copy of its own.

Measured on a CPU: two rows or more that share some hundred tokens decode faster over one shared
copy, and far less is copied when they are admitted; a row that shares with nobody is faster on its
own copy, which the fused kernel reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mlxceld.engine.sequence import Phase
from mlxceld.prompt_cache.radix import common_length

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence

_RUNNING = (Phase.PREFILL, Phase.DECODE)

WORTH_READING_TOGETHER = 128
"""Tokens that a row must have in common with another one to read them from the pool with it."""


def alone(computing: Iterable[Sequence], in_flight: Iterable[Sequence]) -> list[Sequence]:
    """The sequences in prefill that adopted what nobody else in flight begins with.

    Those that others follow stay as they are: what they share comes with those others.
    """
    running = [sequence for sequence in in_flight if sequence.phase in _RUNNING]
    return [
        sequence
        for sequence in computing
        if sequence.block_table
        and not sequence.followers
        and all(_in_common(sequence, other) < WORTH_READING_TOGETHER for other in running)
    ]


def latecomers(
    rows: Iterable[Sequence], newcomers: Iterable[Sequence]
) -> list[tuple[Sequence, int]]:
    """The rows of a batch that should read with newcomers what they hold themselves so far.

    With each the number of tokens, which newcomers read from the pool.
    """
    readers = [sequence for sequence in newcomers if sequence.block_table]
    found = []
    for row in rows:
        common = max((_in_common(reader, row) for reader in readers), default=0)
        if common - row.paged_tokens >= WORTH_READING_TOGETHER:
            found.append((row, common))
    return found


def reads_along(leader: Sequence, followers: Iterable[Sequence]) -> bool:
    """Whether a sequence that has computed a beginning for others should read it with them.

    Not for a small part of it: what is left in its own row would be moved for nothing.
    """
    shared = max((follower.shared_tokens for follower in followers), default=0)
    return shared >= WORTH_READING_TOGETHER and 2 * shared >= len(leader.prompt)


def _in_common(reader: Sequence, other: Sequence) -> int:
    """Tokens that a sequence reads from the pool and another begins with, too; none with itself."""
    if reader is other or reader.request.template_signature != other.request.template_signature:
        return 0
    return common_length(reader.prompt[: reader.paged_tokens], other.prompt)
