"""Where a rendered conversation can be resumed: the points that the next rendering keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Boundary:
    """The first ``tokens`` tokens of a prompt, of which more prompts will begin alike.

    A *head* is system text and tools, which other conversations share; a *boundary* is the history
    before the generation prompt, which the next turn goes on from.
    """

    tokens: int
    kind: Literal["head", "boundary"]
