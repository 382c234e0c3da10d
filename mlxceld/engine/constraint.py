"""What may come next in one sequence, made of the schema that its request carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mlxceld.engine.request import ConstraintSpec
    from mlxceld.models.text import TextCodec


class Constraint(Protocol):
    """The engine asks before and tells after every token; it belongs to one sequence alone."""

    def mask(self) -> bytes:
        """A bit for each token, lowest bit of the first byte first: 1 where it may come next."""

    def accept(self, token: int) -> None:
        """Take the token that came; raises ValueError for one that may not."""


def make_constraint(codec: TextCodec, spec: ConstraintSpec) -> Constraint:
    """A fresh constraint; raises GrammarError for a schema that cannot be enforced.

    The schema was compiled when its request was read, and is kept since: nothing is compiled here
    unless dozens of others came between.
    """
    return codec.grammar(spec.schema).constraint(spec.opens)
