"""The body of ``POST /v1/responses``, as far as it is read. Unknown fields are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from mlxceld.api.openai.schemas import by_type, number, union, whole
from mlxceld.api.validation import RequestModel

Input = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[list[dict[str, Any]], Field(min_length=1), Tag("~items")],
    union(by_type({str: "~text", list: "~items"}), "a string or a list of items"),
]


class FunctionTool(RequestModel):
    """A function that the model may call; ``parameters`` is a JSON schema."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class NamedTool(RequestModel):
    """A choice of one function."""

    type: Literal["function"]
    name: str


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~mode")]
    | Annotated[NamedTool, Tag("~named")],
    union(
        by_type({str: "~mode", dict: "~named"}),
        "'none', 'auto', 'required' or an object that names a function",
    ),
]


class TextFormat(RequestModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class TextOptions(RequestModel):
    """How the answer's text is to be."""

    format: TextFormat | None = None


class ReasoningOptions(RequestModel):
    """How much the model is to think: none, or as it is made to."""

    effort: str | None = None


class ResponsesRequest(RequestModel):
    """The body of ``POST /v1/responses``. Null is the same as absent."""

    model: str | None = None
    input: Input
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    temperature: Annotated[float, number(0, 2, "a number from 0 to 2")] | None = None
    top_p: Annotated[float, number(0, 1, "a number above 0, up to 1", above=True)] | None = None
    max_output_tokens: Annotated[int, whole(1)] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
