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


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much the model is to think; the first two are other vendors' words."""


class MessageOutputConfig(RequestModel):
    """What a late system message sets for its turn."""

    effort: Effort | None = None


class Message(RequestModel):
    """One message; its blocks are read one by one where they are converted.

    ``clear_at`` and ``output_config`` are for system messages.
    """

    role: Literal["user", "assistant", "system"]
    content: Blocks | None = None
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: MessageOutputConfig | None = None


class Tool(RequestModel):
    """A tool of any kind; a function has an ``input_schema``, a JSON schema, and a name."""

    type: str | None = None
    name: Annotated[str, Field(min_length=1)] | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class ToolChoice(RequestModel):
    """Whether the model may, must or may not call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(RequestModel):
    """Whether the model is to think, and how many tokens long where its template has a budget."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, whole(0)] | None = None


class Metadata(RequestModel):
    """Who asks."""

    user_id: str | None = None


class OutputFormat(RequestModel):
    """The form of the answer."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    """How the answer is to be: its form in newer requests, and how much to think before it."""

    effort: Effort | None = None
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
