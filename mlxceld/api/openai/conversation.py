"""From the body of a chat completion to the conversation that it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlxceld.api.conversation import Conversation
from mlxceld.api.errors import invalid
from mlxceld.api.notes import Notes
from mlxceld.api.openai.fields import CHAT_FIELDS
from mlxceld.api.openai.history import messages_of
from mlxceld.api.openai.reasoning import reasoning_of
from mlxceld.api.openai.schemas import ChatRequest
from mlxceld.api.openai.tools import ToolUse, tool_use
from mlxceld.api.validation import validate


@dataclass(frozen=True, slots=True)
class ChatBody:
    """What a body says: its fields, its tools and the conversation."""

    fields: ChatRequest
    tools: ToolUse
    conversation: Conversation


def read_chat(body: dict[str, Any], notes: Notes) -> ChatBody:
    """Read a body; raises a 400 ApiError. What cannot be honoured goes to ``notes``."""
    CHAT_FIELDS.check(body, notes)
    fields = validate(ChatRequest, body)
    _check(fields)
    tools = tool_use(fields, body, notes)
    return ChatBody(fields, tools, _conversation(fields, body, tools, notes))


def _check(fields: ChatRequest) -> None:
    """What depends on several fields at once; raises ApiError."""
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid(
            "top_logprobs",
            f"top_logprobs is {fields.top_logprobs}, but logprobs is not true; it needs to be",
        )
    if fields.continue_final_message:
        if fields.add_generation_prompt:
            raise invalid(
                "continue_final_message",
                "continue_final_message and add_generation_prompt are both true;"
                " an answer either continues the last message or begins a new one",
            )
        if fields.messages[-1].role != "assistant":
            raise invalid(
                "continue_final_message",
                "continue_final_message is true, but the last message is not the assistant's",
            )


def _conversation(
    fields: ChatRequest, body: dict[str, Any], tools: ToolUse, notes: Notes
) -> Conversation:
    """The request in the common form; raises ApiError."""
    continued = bool(fields.continue_final_message)
    schema, schema_param = _schema(fields)
    return Conversation(
        messages=messages_of(fields.messages, notes),
        tools=tools.tools or None,
        tool_choice=tools.choice,
        allowed=tools.allowed,
        parallel=fields.parallel_tool_calls is not False and not tools.legacy,
        template_kwargs=body.get("chat_template_kwargs"),
        reasoning=reasoning_of(fields),
        generation_prompt=(
            not continued if fields.add_generation_prompt is None else fields.add_generation_prompt
        ),
        continued=continued,
        schema=schema,
        schema_param=schema_param,
    )


def _schema(fields: ChatRequest) -> tuple[dict[str, Any] | None, str]:
    """The schema that the answer has to fit, and the field it came in."""
    form = fields.response_format
    named = form.json_schema if form else None
    path = "response_format.json_schema.schema"
    if form is None or form.type == "text":
        return None, path
    if named is not None and named.json_schema is not None:
        return named.json_schema, path
    if form.beside:
        return form.beside, "response_format.schema"
    if form.type == "json_object":
        return {"type": "object"}, "response_format"
    if named is None:
        path = "response_format.json_schema"
    raise invalid(path, f"{path} is missing", code="missing_required_parameter")
