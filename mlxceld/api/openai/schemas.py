"""The bodies of OpenAI's requests, as far as they are read. Unknown fields are ignored."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from mlxceld.api.validation import RequestModel

STOP_LIMIT = 16
CHOICES_LIMIT = 16
LOGPROBS_LIMIT = 20
BIAS_LIMIT = 32_768

_TOKEN_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


def _expected(what: str) -> PydanticCustomError:
    return PydanticCustomError("expected", "Input should be {what}", {"what": what})


def number(low: float, high: float, text: str, *, above: bool = False) -> AfterValidator:
    """A number from ``low`` to ``high``, above ``low`` if so asked; ``text`` says so in errors."""

    def check(value: float) -> float:
        # Infinity can come from a number like 1e999; no comparison lets it or NaN through.
        if not (low < value if above else low <= value) or not value <= high:
            raise _expected(text)
        return value

    return AfterValidator(check)


def whole(low: int, high: int | None = None) -> AfterValidator:
    """A whole number in a range."""
    text = f"a whole number from {low}" + ("" if high is None else f" to {high}")

    def check(value: int) -> int:
        if value < low or (high is not None and value > high):
            raise _expected(text)
        return value

    return AfterValidator(check)


def _few_keys(value: Any) -> Any:
    """Before any of them is looked at: each costs more than its comparison with the limit."""
    if isinstance(value, dict) and len(value) > BIAS_LIMIT:
        raise _expected(f"an object of at most {BIAS_LIMIT} token ids")
    return value


def _token_keys(value: dict[str, float]) -> dict[str, float]:
    for key in value:
        if not _TOKEN_ID.fullmatch(key):
            raise _expected("an object whose keys are token ids")
    return value


def by_type(tags: dict[type, str]) -> Callable[[object], str | None]:
    """Tells the members of a union apart by their JSON type."""
    return lambda value: tags.get(type(value))


def _prompt_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "~text"
    if not isinstance(value, list) or not value:
        return None
    first = value[0]
    if isinstance(first, str):
        return "~texts"
    return "~token_lists" if isinstance(first, list) else "~tokens"


def union(kind: Callable[[object], str | None], expected: str) -> Discriminator:
    """A union told apart by ``kind``; ``expected`` is what errors ask for."""
    return Discriminator(
        kind, custom_error_type="expected", custom_error_message=f"Input should be {expected}"
    )


Unit = Annotated[float, number(0, 1, "a number from 0 to 1")]
Penalty = Annotated[float, number(-2, 2, "a number from -2 to 2")]
StopText = Annotated[str, Field(min_length=1)]
Bias = Annotated[float, number(-100, 100, "a number from -100 to 100")]

Stop = Annotated[
    Annotated[StopText, Tag("~one")]
    | Annotated[list[StopText], Field(max_length=STOP_LIMIT), Tag("~many")],
    union(
        by_type({str: "~one", list: "~many"}), f"a string or a list of up to {STOP_LIMIT} strings"
    ),
]

Prompt = Annotated[
    Annotated[str, Tag("~text")]
    | Annotated[list[str], Tag("~texts")]
    | Annotated[list[int], Tag("~tokens")]
    | Annotated[list[Annotated[list[int], Field(min_length=1)]], Tag("~token_lists")],
    union(_prompt_kind, "a string, a list of strings, a list of token ids or a list of such lists"),
]


class ExtraBody(RequestModel):
    """What some clients send nested instead of at the top."""

    prompt_cache_key: str | None = None
    user: str | None = None


class StreamOptions(RequestModel):
    """How a stream is told."""

    include_usage: bool | None = None


class GenerationFields(RequestModel):
    """What chat completions and completions share. Null is the same as absent."""

    model: str | None = None
    temperature: Annotated[float, number(0, 2, "a number from 0 to 2")] | None = None
    top_p: Annotated[float, number(0, 1, "a number above 0, up to 1", above=True)] | None = None
    top_k: Annotated[int, whole(-1)] | None = None
    min_p: Unit | None = None
    repetition_penalty: (
        Annotated[float, number(0, 1e6, "a number above 0, up to 1000000", above=True)] | None
    ) = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[dict[str, Bias], BeforeValidator(_few_keys), AfterValidator(_token_keys)] | None
    ) = None
    seed: int | None = None
    max_tokens: Annotated[int, whole(1)] | None = None
    max_completion_tokens: Annotated[int, whole(1)] | None = None
    stop: Stop | None = None
    n: Annotated[int, whole(1, CHOICES_LIMIT)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    extra_body: ExtraBody | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream is to end with its token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ContentPart(RequestModel):
    """A part of a message's content: text, a refusal, or what an assistant thought.

    ``type`` may be left out where there is ``text``. Other kinds are refused where messages are
    converted.
    """

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    thinking: str | list[dict[str, Any]] | None = None


Arguments = Annotated[
    Annotated[str, Tag("~text")] | Annotated[dict[str, Any], Tag("~object")],
    union(by_type({str: "~text", dict: "~object"}), "JSON text or an object"),
]


class CalledFunction(RequestModel):
    """What the assistant called; ``arguments`` is JSON text or the object itself."""

    name: str
    arguments: Arguments | None = None


class CalledCustom(RequestModel):
    """What the assistant called with free text."""

    name: str
    input: str | None = None


class ToolCall(RequestModel):
    """A call in an assistant message."""

    id: str | None = None
    type: Literal["function", "custom"] | None = None
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


Parts = list[
    Annotated[
        Annotated[str, Tag("~text")] | Annotated[ContentPart, Tag("~part")],
        union(by_type({str: "~text", dict: "~part"}), "an object or a string"),
    ]
]

Content = Annotated[
    Annotated[str, Tag("~text")] | Annotated[Parts, Tag("~parts")],
    union(by_type({str: "~text", list: "~parts"}), "a string or a list of text parts"),
]


class Message(RequestModel):
    """One message of a conversation.

    What an assistant thought may be in any of the four fields that clients know; the first that
    holds text counts.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    refusal: str | None = None
    audio: dict[str, Any] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    thinking: Any = None
    reasoning_details: Any = None


class FunctionTool(RequestModel):
    """A function that the model may call; ``parameters`` is a JSON schema."""

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class CustomTool(RequestModel):
    """A tool that takes free text; ``format`` may be a grammar."""

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    format: dict[str, Any] | None = None


class Tool(RequestModel):
    """A tool that the model may use."""

    type: Literal["function", "custom"]
    function: FunctionTool | None = None
    custom: CustomTool | None = None


class NamedFunction(RequestModel):
    """The function that the model has to call."""

    name: str


class NamedTool(RequestModel):
    """A choice of one tool."""

    type: Literal["function", "custom"]
    function: NamedFunction | None = None
    custom: NamedFunction | None = None


class AllowedTools(RequestModel):
    """Which of the tools may be called, and whether one has to be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


class AllowedToolsChoice(RequestModel):
    """A choice of some tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _choice_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "~mode"
    if not isinstance(value, dict):
        return None
    return "~allowed" if value.get("type") == "allowed_tools" else "~named"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("~mode")]
    | Annotated[NamedTool, Tag("~named")]
    | Annotated[AllowedToolsChoice, Tag("~allowed")],
    union(_choice_kind, "'none', 'auto', 'required' or an object that names tools"),
]

FunctionCall = Annotated[
    Annotated[Literal["none", "auto"], Tag("~mode")] | Annotated[NamedFunction, Tag("~named")],
    union(
        by_type({str: "~mode", dict: "~named"}), "'none', 'auto' or an object that names a function"
    ),
]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ReasoningOptions(RequestModel):
    """What OpenRouter's clients say of reasoning; ``exclude`` leaves it out of the answer."""

    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: Annotated[int, whole(0)] | None = None
    exclude: bool | None = None


class ThinkingOptions(RequestModel):
    """What clients of DeepSeek, GLM and Anthropic say of reasoning."""

    type: Literal["enabled", "disabled", "auto", "adaptive"]
    budget_tokens: Annotated[int, whole(0)] | None = None


class JsonSchemaFormat(RequestModel):
    """A named JSON schema."""

    name: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """The form of the answer; llama.cpp's clients send the schema beside the type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    beside: dict[str, Any] | None = Field(default=None, alias="schema")


class ChatRequest(GenerationFields):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, whole(0, LOGPROBS_LIMIT)] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionTool] | None = None
    function_call: FunctionCall | None = None
    reasoning_effort: Effort | None = None
    reasoning: ReasoningOptions | None = None
    thinking: ThinkingOptions | None = None
    enable_thinking: bool | None = None
    thinking_budget: Annotated[int, whole(0)] | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class CompletionRequest(GenerationFields):
    """The body of ``POST /v1/completions``."""

    prompt: Prompt
    logprobs: Annotated[int, whole(0, LOGPROBS_LIMIT)] | None = None
    best_of: Annotated[int, whole(1, CHOICES_LIMIT)] | None = None
    echo: bool | None = None
    suffix: str | None = None
