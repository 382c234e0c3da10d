"""The bodies of Anthropic's requests, as far as they are read. Unknown fields are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from mlxceld.api.openai.schemas import by_type, number, union, whole
from mlxceld.api.validation import RequestModel

Blocks = Annotated[
    Annotated[str, Tag("~text")] | Annotated[list[dict[str, Any]], Tag("~blocks")],
    union(by_type({str: "~text", list: "~blocks"}), "a string or a list of content blocks"),
]


class Message(RequestModel):
    """One message; its blocks are read one by one where they are converted."""

    role: Literal["user", "assistant", "system"]
    content: Blocks


class Tool(RequestModel):
    """A function that the model may call; ``input_schema`` is a JSON schema."""

    type: str | None = None
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class ToolChoice(RequestModel):
    """Whether the model may, must or may not call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(RequestModel):
    """Whether the model is to think; how long is not limited."""

    type: Literal["enabled", "disabled", "adaptive"]


class Metadata(RequestModel):
    """Who asks."""

    user_id: str | None = None


class OutputFormat(RequestModel):
    """The form of the answer."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    """Where the form of the answer stands in newer requests."""

    format: OutputFormat | None = None


class PromptRequest(RequestModel):
    """The body of ``POST /v1/messages/count_tokens``: what the prompt is made of."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    system: Blocks | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_format: OutputFormat | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None


class MessagesRequest(PromptRequest):
    """The body of ``POST /v1/messages``."""

    max_tokens: Annotated[int, whole(1)]
    stop_sequences: list[Annotated[str, Field(min_length=1)]] | None = None
    temperature: Annotated[float, number(0, 2, "a number from 0 to 2")] | None = None
    top_p: Annotated[float, number(0, 1, "a number above 0, up to 1", above=True)] | None = None
    top_k: Annotated[int, whole(0)] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
