"""Whether two servers answered alike: greedy answers of the same weights should be the same text.

They need not be: where two tokens are nearly as likely, another order of additions decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlxctl.bench.run import Run

_BEFORE, _AFTER = 24, 40
"""Characters that are shown before and after the place where answers part."""


@dataclass(frozen=True)
class Difference:
    """An answer of which two servers have different texts.

    ``at`` is the first character that differs; the excerpts are of the neighbourhood.
    ``follows`` tells that an earlier turn of its conversation differs too, and so the prompt;
    ``only_leading_space`` that one has white space at its beginning that the other lacks.
    """

    repeat: int
    scenario: str
    conversation: int
    turn: int
    at: int
    first: str
    other: str
    follows: bool
    only_leading_space: bool


@dataclass(frozen=True)
class Comparison:
    """How many answers were compared, and those that differ."""

    compared: int
    differences: list[Difference]

    def as_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "compared": self.compared,
            "alike": self.compared - len(self.differences),
            "differences": [asdict(one) for one in self.differences],
        }


def compare_answers(pairs: Sequence[tuple[Run, Run]]) -> Comparison:
    """Compare the answers of runs of the same scenario and repeat, request by request."""
    compared, found = 0, []
    for first, other in pairs:
        texts = {(one.conversation, one.turn): one.text for one in other.answers}
        parted: set[int] = set()
        for answer in sorted(first.answers, key=lambda one: (one.conversation, one.turn)):
            text = texts.get((answer.conversation, answer.turn))
            if text is None:
                continue
            compared += 1
            if text == answer.text:
                continue
            at = _first_difference(answer.text, text)
            around = slice(max(0, at - _BEFORE), at + _AFTER)
            found.append(
                Difference(
                    first.repeat,
                    first.scenario,
                    answer.conversation,
                    answer.turn,
                    at,
                    answer.text[around],
                    text[around],
                    answer.conversation in parted,
                    answer.text.lstrip() == text.lstrip(),
                )
            )
            parted.add(answer.conversation)
    return Comparison(compared, found)


def _first_difference(a: str, b: str) -> int:
    return next(
        (at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
