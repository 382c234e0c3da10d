"""What the engine asks about the turn that comes after a reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mlxceld.engine.request import GenerationRequest


class NextTurns(Protocol):
    """One conversation's next turn; made by whoever renders conversations."""

    def keeps(self, tokens: Sequence[int]) -> int:
        """How many of ``tokens``, prompt and answer, the next turn begins with.

        Called on the engine thread when the answer is complete, after :meth:`replied`.
        """

    def replied(self, text: str) -> None:
        """The answer is complete; returns at once."""


MakeNextTurns = Callable[["GenerationRequest"], NextTurns | None]
"""Makes them of a request's ContinuationSpec; called on the engine thread."""


def unknown(request: GenerationRequest) -> NextTurns | None:
    """Where nobody renders conversations."""
    return None
