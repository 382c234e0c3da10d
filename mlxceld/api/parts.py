"""What an answer is made of, whatever the API: the typed events that every dialect writes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from mlxceld.engine.events import TokenLogprob


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer's text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; ``index`` counts the answer's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


Part = Text | Reasoning | CallStart | CallArguments


@dataclass(slots=True)
class Call:
    """A whole call; ``arguments`` is JSON text."""

    id: str
    name: str
    arguments: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are JSON; where the limit has cut them they are not."""
        return is_json(self.arguments)


@dataclass(slots=True)
class Answer:
    """A whole answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] | None = None
    logprobs: list[TokenLogprob] | None = None

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Answer:
        """Put the parts of one answer together, as a client does with a stream.

        A forced call that the limit has cut has the arguments that came.
        """
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[Call] = []
        logprobs: list[TokenLogprob] = []
        for part in parts:
            match part:
                case Text():
                    texts.append(part.text)
                    logprobs.extend(part.logprobs)
                case Reasoning():
                    thoughts.append(part.text)
                case CallStart():
                    calls.append(Call(part.id, part.name))
                case CallArguments():
                    calls[part.index].arguments += part.text
        return cls("".join(texts), "".join(thoughts), calls, logprobs)

    def whole_calls(self) -> list[Call]:
        """The calls that can be made: without one whose arguments the limit has cut."""
        return [call for call in self.calls or () if call.is_whole]


def is_json(text: str) -> bool:
    """Whether a text is one JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
