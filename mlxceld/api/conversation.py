"""The one form of a conversation request that all dialects bring theirs into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxceld.models.reasoning import ReasoningRequest


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation to be answered, in the shapes of chat completions.

    ``tool_choice`` is None, "none", "auto", "required" or an object that names a function;
    ``allowed`` names the only tools that may be called, None for all.
    ``reasoning`` is what the request says of thinking; ``template_kwargs`` win over it.
    ``schema`` is the JSON schema that the answer has to fit and ``schema_param`` the field it came
    in. ``marks`` are numbers of messages after which the caller wants the prompt kept. The other
    ``_param`` fields are what errors name.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: object = None
    allowed: frozenset[str] | None = None
    parallel: bool = True
    template_kwargs: Mapping[str, Any] | None = None
    reasoning: ReasoningRequest | None = None
    generation_prompt: bool = True
    continued: bool = False
    schema: Mapping[str, Any] | None = None
    schema_param: str = "response_format"
    messages_param: str = "messages"
    marks: tuple[int, ...] = ()
