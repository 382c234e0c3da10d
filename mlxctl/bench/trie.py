"""How many tokens prompts make a server compute at least, where nothing is computed twice."""

from __future__ import annotations

from collections.abc import Sequence

Prompt = Sequence[int]


def distinct_tokens(
    prompts: Sequence[Prompt], *, warming: Sequence[Prompt] = (), min_prefix: int = 1
) -> int:
    """The nodes of the prompts' token trie, with two allowances.

    A run that prompts share counts once for each of them if it has fewer than ``min_prefix``
    tokens, from the beginning or from the end of a longer run: so little is not worth an entry. A
    prompt that has been there before, whole, counts one token more: there has to be one to go on
    from. What ``warming`` prompts brought counts as seen; they themselves count nothing. The order
    of the prompts is that of their sending.
    """
    return _count(list(prompts), list(warming), 0, min_prefix)


def _count(prompts: list[Prompt], warming: list[Prompt], base: int, min_prefix: int) -> int:
    """The count of prompts that begin alike, of which ``base`` tokens have been counted."""
    if not prompts:
        return 0
    end = _branching([*prompts, *warming], base)
    least = base + min_prefix
    total = sum(
        len(prompt) - base for prompt in prompts if len(prompt) <= end and len(prompt) < least
    )
    prompts, warming = (
        [prompt for prompt in some if len(prompt) > end or len(prompt) >= least]
        for some in (prompts, warming)
    )
    if len(prompts) + len(warming) == 1:
        return total + sum(len(prompt) - base for prompt in prompts)
    if end >= least:
        seen = max((min(len(prompt), end) for prompt in warming), default=base)
        longest = max((min(len(prompt), end) for prompt in prompts), default=base)
        total += max(0, longest - seen)
        for prompt in prompts:
            # Wholly there before: in a warming prompt, or in one that was sent earlier.
            total += len(prompt) <= seen
            seen = max(seen, min(len(prompt), end))
        base = end
    for token in dict.fromkeys(prompt[end] for prompt in prompts if len(prompt) > end):
        total += _count(
            [prompt for prompt in prompts if len(prompt) > end and prompt[end] == token],
            [prompt for prompt in warming if len(prompt) > end and prompt[end] == token],
            base,
            min_prefix,
        )
    return total


def _branching(prompts: Sequence[Prompt], start: int) -> int:
    """How deep all go the same way, at least ``start``; those that end do not part."""
    for depth in range(start, max(map(len, prompts))):
        if len({prompt[depth] for prompt in prompts if len(prompt) > depth}) > 1:
            return depth
    return max(map(len, prompts))
