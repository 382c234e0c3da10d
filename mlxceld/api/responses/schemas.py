"""The body of ``POST /v1/responses``, as far as it is read. ``fields.py`` has the other fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag
from pydantic_core import PydanticCustomError

from mlxceld.api.openai.schemas import LOGPROBS_LIMIT, by_type, number, union, whole
from mlxceld.api.validation import RequestModel
from mlxceld.models.reasoning import EFFORTS

Items = list[dict[str, Any]]

Input = Annotated[
    Annotated[str, Tag("~text")] | Annotated[Items, Field(min_length=1), Tag("~items")],
    union(by_type({str: "~text", list: "~items"}), "a string or a list of items"),
]

CountedInput = Annotated[
    Annotated[str, Tag("~text")] | Annotated[Items, Tag("~items")],
    union(by_type({str: "~text", list: "~items"}), "a string or a list of items"),
]

ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~mode")]
    | Annotated[dict[str, Any], Tag("~object")],
    union(
        by_type({str: "~mode", dict: "~object"}),
        "'none', 'auto', 'required' or an object that names a tool",
    ),
]


def _known_effort(value: str) -> str:
    if value not in EFFORTS:
        expected = f"{', '.join(map(repr, EFFORTS[:-1]))} or {EFFORTS[-1]!r}"
        raise PydanticCustomError("expected", "Input should be {what}", {"what": expected})
    return value


class TextFormat(RequestModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class TextOptions(RequestModel):
    """How the answer's text is to be."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(RequestModel):
    """How much the model is to think."""

    effort: Annotated[str, AfterValidator(_known_effort)] | None = None
    summary: str | None = None


class ConfigurationUpdate(RequestModel):
    """An item that replaces fields of the request for the answers after it."""

    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None


class PromptFields(RequestModel):
    """What a prompt is made of. Null is the same as absent."""

    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CountRequest(PromptFields):
    """The body of ``POST /v1/responses/input_tokens``."""

    input: CountedInput | None = None


class ResponsesRequest(PromptFields):
    """The body of ``POST /v1/responses``."""

    input: Input
    store: bool | None = None
    stream: bool | None = None
    temperature: Annotated[float, number(0, 2, "a number from 0 to 2")] | None = None
    top_p: Annotated[float, number(0, 1, "a number above 0, up to 1", above=True)] | None = None
    max_output_tokens: Annotated[int, whole(1)] | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, whole(0, LOGPROBS_LIMIT)] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None

    @property
    def logprobs(self) -> int | None:
        """How many alternatives a token is to have; None where no log-probabilities are wanted."""
        if self.top_logprobs or "message.output_text.logprobs" in (self.include or ()):
            return self.top_logprobs or 0
        return None

    @property
    def carries_reasoning(self) -> bool:
        """Whether reasoning is to come in a form that a client without a store sends back."""
        return "reasoning.encrypted_content" in (self.include or ())
