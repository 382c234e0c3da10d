"""Keeps an answer to the calls that its request allows."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence

from mlxceld.api.parts import CallArguments, CallStart, Part, Text
from mlxceld.api.reader import AnswerReader
from mlxceld.engine.events import TokenLogprob


class AllowedCalls:
    """A reader that lets calls of ``allowed`` functions through; the others come as text.

    The model is shown every tool, whichever are allowed, so that the prompt stays the one that is
    cached. The text of a call is its name and arguments as JSON.
    """

    def __init__(self, reader: AnswerReader, allowed: Collection[str]) -> None:
        self._reader = reader
        self._allowed = allowed
        self._numbers: dict[int, int] = {}
        self._refused: tuple[str, list[str]] | None = None

    @property
    def called(self) -> bool:
        """See :class:`AnswerReader`."""
        return bool(self._numbers)

    def push(self, text: str, logprobs: Iterable[TokenLogprob] = ()) -> list[Part]:
        """See :class:`AnswerReader`."""
        return self._filter(self._reader.push(text, logprobs))

    def finish(self) -> list[Part]:
        """See :class:`AnswerReader`."""
        return [*self._filter(self._reader.finish()), *self._as_text()]

    def _filter(self, parts: Sequence[Part]) -> list[Part]:
        kept: list[Part] = []
        for part in parts:
            if isinstance(part, CallArguments):
                if self._refused is not None:
                    self._refused[1].append(part.text)
                else:
                    kept.append(CallArguments(self._numbers[part.index], part.text))
                continue
            kept += self._as_text()
            if not isinstance(part, CallStart):
                kept.append(part)
            elif part.name in self._allowed:
                number = self._numbers.setdefault(part.index, len(self._numbers))
                kept.append(CallStart(number, part.id, part.name))
            else:
                self._refused = (part.name, [])
        return kept

    def _as_text(self) -> list[Part]:
        if self._refused is None:
            return []
        name, arguments = self._refused
        self._refused = None
        return [Text(f'{{"name": {json.dumps(name)}, "arguments": {"".join(arguments)}}}')]
