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


@dataclass(slots=True)
class Answer:
    """A whole answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] | None = None
    logprobs: list[TokenLogprob] | None = None

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Answer:
        """Put the parts of one answer together.

        A call that the limit has cut, so that its arguments are no JSON, is left out.
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
        whole = [call for call in calls if _is_json(call.arguments)]
        return cls("".join(texts), "".join(thoughts), whole, logprobs)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
