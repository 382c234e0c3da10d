"""What is said to the daemon of the soak: texts, and prompts with a known answer."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from soak_dialects import CHAT, COMPLETIONS

Body = dict[str, Any]

_WORDS = [
    *("river", "stone", "window", "garden", "letter", "winter", "engine", "copper", "forest"),
    *("signal", "market", "bridge", "yellow", "planet", "circle", "morning", "shadow", "ticket"),
]


@dataclass
class Reference:
    """A prompt with the only answer that it may have, at temperature 0."""

    path: str
    body: Body
    text: str = ""


def words(rng: random.Random, count: int) -> str:
    """A text of so many words."""
    return " ".join(rng.choice(_WORDS) for _ in range(count))


def _systems() -> list[str]:
    return [f"{i} {words(random.Random(f'system {i}'), 20 + 15 * i)}." for i in range(4)]  # noqa: S311


SYSTEMS = _systems()
"""System prompts that many conversations share."""


def candidates(seed: int) -> list[Reference]:
    """Prompts that may serve as references, more than are needed."""
    found = []
    for number in range(40):
        rng = random.Random(f"{seed} reference {number}")  # noqa: S311 - fixed, not secret
        text = words(rng, rng.choice((3, 8, 30, 60)))
        if number % 2:
            messages = [
                {"role": "system", "content": SYSTEMS[number % len(SYSTEMS)]},
                {"role": "user", "content": text},
            ]
            found.append(Reference(CHAT, {"messages": messages}))
        else:
            found.append(Reference(COMPLETIONS, {"prompt": text}))
        found[-1].body |= {"max_tokens": 16, "temperature": 0}
    return found
