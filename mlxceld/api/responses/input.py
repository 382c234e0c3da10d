"""From a request's fields, and what is stored, to the conversation that is to be answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlxceld.api.body import describe
from mlxceld.api.conversation import Conversation
from mlxceld.api.errors import invalid
from mlxceld.api.notes import Notes
from mlxceld.api.responses.choice import chosen
from mlxceld.api.responses.content import string_of
from mlxceld.api.responses.items import Converted, convert, kind_of
from mlxceld.api.responses.schemas import PromptFields, TextOptions
from mlxceld.api.responses.store import ResponseStore, StoredResponse
from mlxceld.api.responses.tools import OfferedTools, offered_tools
from mlxceld.models.reasoning import ReasoningRequest


@dataclass(frozen=True, slots=True)
class ResponsesInput:
    """A request brought into the common form.

    ``items`` are all of the conversation's so far, without the instructions; ``tools`` those that
    the model is told of. ``previous`` is the stored response that is continued.
    """

    items: Sequence[dict[str, Any]]
    conversation: Conversation
    tools: OfferedTools
    previous: StoredResponse | None


def input_of(
    fields: PromptFields, given: str | list[dict[str, Any]], store: ResponseStore, notes: Notes
) -> ResponsesInput:
    """The conversation that ``given`` and the other fields are; what is left out is noted.

    Raises a 400 ApiError that names the field at fault.
    """
    previous = _previous(fields, store)
    known = list(previous.items) if previous else []
    if isinstance(given, str):
        added = [{"type": "message", "role": "user", "content": given}]
    else:
        added = [_resolved(item, f"input[{i}]", store) for i, item in enumerate(given)]
    items = [*known, *added]
    converted = convert(items, notes, known=len(known))
    specs = [(f"tools[{index}]", tool) for index, tool in enumerate(fields.tools or ())]
    offered = offered_tools([*specs, *converted.tools], notes)
    choice, allowed = chosen(fields.tool_choice, offered)
    if fields.text and fields.text.verbosity not in (None, "medium"):
        notes.skip("text.verbosity", "the model is not told of it")
    messages = converted.messages
    if fields.instructions:
        messages = [{"role": "system", "content": fields.instructions}, *messages]
    if not messages:
        raise invalid("input", "input is missing", code="missing_required_parameter")
    conversation = Conversation(
        messages=messages,
        tools=offered.functions or None,
        tool_choice=choice,
        allowed=allowed,
        parallel=fields.parallel_tool_calls is not False,
        template_kwargs=fields.chat_template_kwargs,
        reasoning=_reasoning(fields, converted),
        schema=_schema(converted.text or fields.text),
        schema_param="text.format.schema",
        messages_param="input",
    )
    return ResponsesInput(items, conversation, offered, previous)


def _previous(fields: PromptFields, store: ResponseStore) -> StoredResponse | None:
    if fields.previous_response_id is None:
        return None
    previous = store.get(fields.previous_response_id)
    if previous is None:
        raise invalid(
            "previous_response_id",
            f"previous_response_id is {describe(fields.previous_response_id)}, which is not"
            " kept here; send the whole conversation as input",
            code="previous_response_not_found",
        )
    return previous


def _resolved(item: dict[str, Any], where: str, store: ResponseStore) -> dict[str, Any]:
    """The item itself, or the stored one that it refers to."""
    if kind_of(item) != "item_reference":
        return item
    found = store.item(string_of(item, "id", where))
    if found is None:
        raise invalid(
            f"{where}.id",
            f"{where}.id is {describe(item['id'])}, an item that is not kept here; send the item"
            " itself",
            code="item_not_found",
        )
    return found


def _reasoning(fields: PromptFields, converted: Converted) -> ReasoningRequest | None:
    options = converted.reasoning or fields.reasoning
    return ReasoningRequest(options.effort) if options else None


def _schema(text: TextOptions | None) -> dict[str, Any] | None:
    form = text.format if text else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "object"}
    if form.json_schema is None:
        raise invalid(
            "text.format.schema",
            "text.format.schema is missing",
            code="missing_required_parameter",
        )
    return form.json_schema
