"""Prompts under way that begin alike: one computes the common tokens, the others follow it.

What nobody has stored yet cannot be adopted. So a sequence whose prompt shares a worthwhile
beginning with one in prefill waits until that one has computed it, adopts it, and goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mlxceld.prompt_cache.radix import common_length

if TYPE_CHECKING:
    from mlxceld.engine.sequence import Sequence


def leader_of(
    sequence: Sequence, computing: Iterable[Sequence], stored: int, least: int
) -> tuple[Sequence | None, int]:
    """Whom a sequence should follow, and the number of tokens that both begin with.

    The one with the longest common beginning, if that is ``least`` tokens more than the ``stored``
    ones. Each keeps a token of its own to compute, so that there is a logit.
    """
    best, longest = None, 0
    for other in computing:
        if (
            other is sequence
            or other.row is None
            or other.request.template_signature != sequence.request.template_signature
        ):
            continue
        most = min(len(sequence.prompt), len(other.prompt)) - 1
        common = common_length(sequence.prompt[:most], other.prompt[:most])
        if common > longest and common - stored >= least:
            best, longest = other, common
    return best, longest


def follow(sequence: Sequence, leader: Sequence, common: int) -> None:
    """Let a sequence wait for the first ``common`` tokens of another."""
    sequence.follows, sequence.shared_tokens = leader, common
    leader.followers.append(sequence)


def unfollow(sequence: Sequence) -> None:
    """A sequence waits for nobody any more."""
    leader, sequence.follows = sequence.follows, None
    if leader is not None:
        leader.followers.remove(sequence)


def ready(leader: Sequence) -> list[Sequence]:
    """The followers whose shared tokens are all computed."""
    return [f for f in leader.followers if f.shared_tokens <= leader.prefilled]


def orphan_followers(leader: Sequence) -> list[Sequence]:
    """The followers of one that has ended: they wait for nobody now, and have to be placed anew."""
    orphans = list(leader.followers)
    for sequence in orphans:
        unfollow(sequence)
    return orphans


def until_shared(sequence: Sequence) -> int:
    """Prompt tokens to where a chunk has to end next, or to the prompt's end.

    That is where a follower can go on, or where the sequence itself has to stop.
    """
    points = [f.shared_tokens - sequence.prefilled for f in sequence.followers]
    points += [s - sequence.prefilled for s in sequence.chunk_boundaries if s > sequence.prefilled]
    return min([sequence.prefill_left, *points])
