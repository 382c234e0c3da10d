"""What chat completions and completions have in common in their answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mlxceld import __version__
from mlxceld.engine.events import Usage

SYSTEM_FINGERPRINT = f"mlxceld-{__version__}"
"""Seeds give the same text as long as this stays the same."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every answer and every chunk of one request carries; ``created`` is Unix time."""

    id: str
    created: int
    model: str

    def head(self, kind: str) -> dict[str, Any]:
        """The fields ahead of the choices; ``kind`` is the object's name."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }


class ChunkFrame:
    """Puts choices into chunks. The part that never changes is written once: this runs per token.

    With ``include_usage`` every chunk carries ``"usage": null`` but the last, which has the counts.
    """

    def __init__(self, envelope: Envelope, kind: str, *, include_usage: bool) -> None:
        head = json.dumps(envelope.head(kind))
        self._before = f'data: {head[:-1]}, "choices": ['
        self._after = '], "usage": null}\n\n' if include_usage else "]}\n\n"
        self._include_usage = include_usage

    def choice(self, fields: str) -> str:
        """A chunk with one choice, given as JSON.

        JSON stays ASCII here: some clients split lines at more characters than a stream may.
        """
        return self._before + fields + self._after

    def usage(self, usage: Usage) -> str:
        """The chunk with the counts and no choice, if it was asked for."""
        if not self._include_usage:
            return ""
        return f'{self._before}], "usage": {json.dumps(usage_object(usage))}}}\n\n'


def usage_object(usage: Usage) -> dict[str, Any]:
    """The token counts as OpenAI's clients read them."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
