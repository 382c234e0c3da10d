"""Images and the like in results of tools, for models that read text.

An image that a user sends is refused: an answer without it would be wrong, and the user can take
it back. A tool's result cannot be taken back, and the client would send it again with every turn.
"""

from __future__ import annotations

from mlxceld.api.notes import Notes


def left_out(kind: str, where: str, notes: Notes) -> str:
    """The text that stands for a part of a tool's result; ``notes`` says that it was left out."""
    name = kind.removeprefix("input_").removesuffix("_url")
    notes.skip(where, f"{name} in a tool's result (this model reads text)")
    return f"[{name} left out: this model reads text]"
