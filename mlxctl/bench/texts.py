"""Seeded text of so many tokens."""

from __future__ import annotations

import random
from collections.abc import Callable

Count = Callable[[str], int]
"""Tokens of a text."""

WORDS = (
    *("river", "mountain", "lantern", "engine", "garden", "harbour", "winter", "copper"),
    *("music", "letter", "bridge", "forest", "market", "signal", "window", "thunder"),
    *("silver", "morning", "island", "shadow", "compass", "orchard", "station", "velvet"),
)

_WORDS_A_TOKEN = 0.7
"""Of these words, in the tokenizers that were looked at, roughly."""


def rough_count(text: str) -> int:
    """Tokens of a text where no tokenizer is at hand."""
    return round(len(text.split()) / _WORDS_A_TOKEN)


def filler(rng: random.Random, tokens: int, count: Count) -> str:
    """Words drawn at random: as many as ``tokens`` has room for, and one at least."""
    words = [rng.choice(WORDS) for _ in range(max(1, tokens))]
    return " ".join(words[: _most(len(words), tokens, lambda n: count(" ".join(words[:n])))])


def question(rng: random.Random, number: int, tokens: int, count: Count) -> str:
    """A question that differs from the others from its beginning on, of about ``tokens``."""
    words = rng.sample(WORDS, min(len(WORDS), max(1, tokens)))

    def text(n: int) -> str:
        return f"{number}: how do {' and '.join(words[:n])} go together?"

    return text(_most(len(words), tokens, lambda n: count(text(n))))


def story(rng: random.Random, number: str) -> str:
    """What a chat model answers at length, each of its own topic."""
    topics = ", ".join(rng.sample(WORDS, 6))
    return (
        f"{number}: write a very long and detailed story, with many paragraphs,"
        f" about the following: {topics}."
    )


def _most(highest: int, limit: int, size: Callable[[int], int]) -> int:
    """The most of 1 to ``highest`` whose ``size``, which grows with it, keeps to a limit, or 1."""
    low = 1
    while low < highest:
        middle = (low + highest + 1) // 2
        if size(middle) <= limit:
            low = middle
        else:
            highest = middle - 1
    return low
