"""A response's output items, built from the parts of an answer and told as they grow."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlxceld.api.openai.logprobs import chat_logprobs
from mlxceld.api.parts import CallArguments, CallStart, Part, Reasoning, Text
from mlxceld.api.responses.calls import CALL_PREFIXES, call_fields
from mlxceld.api.responses.items import carried_reasoning
from mlxceld.api.responses.tools import OfferedTool, OfferedTools
from mlxceld.engine.events import TokenLogprob, Usage

Told = list[tuple[str, dict[str, Any]]]
"""What to tell: pairs of an event's type and its fields."""


@dataclass(slots=True)
class _PendingCall:
    """A call whose item can only be written when all of its arguments are known."""

    tool: OfferedTool
    id: str
    arguments: str = ""


class OutputItems:
    """The items of one response, in order, one open at a time.

    Every method returns what to tell of it. ``ids`` makes the items' ids; ``tools`` decide what
    the item of a call is. With ``logprobs`` texts have log-probabilities; with ``carry_reasoning``
    reasoning also comes in a form that a client without a store sends back.
    """

    def __init__(
        self,
        ids: Callable[[], str],
        tools: OfferedTools,
        *,
        logprobs: bool = False,
        carry_reasoning: bool = False,
    ) -> None:
        self._ids = ids
        self._tools = tools
        self._logprobs = logprobs
        self._carry_reasoning = carry_reasoning
        self._open: dict[str, Any] | None = None
        self._pending: _PendingCall | None = None
        self.items: list[dict[str, Any]] = []

    def add(self, parts: Sequence[Part]) -> Told:
        """More of the answer."""
        events: Told = []
        for part in parts:
            match part:
                case Text():
                    if part.text:
                        events += self._text(part.text, part.logprobs)
                case Reasoning():
                    events += self._reasoning(part.text)
                case CallStart():
                    events += self._call(part)
                case CallArguments():
                    events += self._arguments(part.text)
        return events

    def close(self, status: str = "completed") -> Told:
        """End the open item with a status; no event if none is open."""
        if self._pending is not None:
            return self._close_pending(status)
        item, self._open = self._open, None
        if item is None:
            return []
        where = self._where(item)
        events: Told = []
        if item["type"] == "function_call":
            done = {**where, "name": item["name"], "arguments": item["arguments"]}
            events.append(("response.function_call_arguments.done", done))
        elif item["type"] == "reasoning":
            text = item["content"][0]["text"]
            events.append(
                ("response.reasoning_text.done", {**where, "content_index": 0, "text": text})
            )
            if self._carry_reasoning:
                item["encrypted_content"] = carried_reasoning(text)
        else:
            part = item["content"][0]
            where_part = {**where, "content_index": 0}
            done = {**where_part, "text": part["text"], "logprobs": part["logprobs"]}
            events.append(("response.output_text.done", done))
            events.append(("response.content_part.done", {**where_part, "part": dict(part)}))
        item["status"] = status
        return [*events, self._done(item)]

    def ensure_text(self) -> Told:
        """An answer of nothing is a message without text."""
        return [] if self.items or self._pending else self._begin_message()

    def _begin(self, item: dict[str, Any]) -> Told:
        events = self.close()
        self._open = item
        self.items.append(item)
        return [*events, self._added(item)]

    def _begin_message(self) -> Told:
        item: dict[str, Any] = {
            "id": f"msg_{self._ids()}",
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        events = self._begin(item)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item["content"].append(part)
        where = {**self._where(item), "content_index": 0}
        return [*events, ("response.content_part.added", {**where, "part": _copy(part)})]

    def _text(self, text: str, tokens: Sequence[TokenLogprob]) -> Told:
        events: Told = []
        if self._open is None or self._open["type"] != "message":
            events += self._begin_message()
        logprobs = chat_logprobs(tokens)["content"] if self._logprobs else []
        if self._open is not None:
            self._open["content"][0]["logprobs"] += logprobs
        return [*events, self._grow("response.output_text.delta", text, logprobs=logprobs)]

    def _reasoning(self, text: str) -> Told:
        events: Told = []
        if self._open is None or self._open["type"] != "reasoning":
            item: dict[str, Any] = {
                "id": f"rs_{self._ids()}",
                "type": "reasoning",
                "status": "in_progress",
                "summary": [],
                "content": [],
            }
            events += self._begin(item)
            item["content"] = [{"type": "reasoning_text", "text": ""}]
        return [*events, self._grow("response.reasoning_text.delta", text)]

    def _grow(self, kind: str, text: str, **more: Any) -> tuple[str, dict[str, Any]]:
        if self._open is None:
            raise RuntimeError("text without an item")
        self._open["content"][0]["text"] += text
        return kind, {**self._where(self._open), "content_index": 0, "delta": text, **more}

    # Calls. A function's arguments are told as they grow, other calls when they are whole.

    def _call(self, start: CallStart) -> Told:
        tool = self._tools.called(start.name)
        if tool is None or tool.kind == "function":
            return self._begin(self._function_call(tool, start.name, start.id))
        events = self.close()
        self._pending = _PendingCall(tool, start.id)
        return events

    def _function_call(self, tool: OfferedTool | None, name: str, call_id: str) -> dict[str, Any]:
        item = {
            "id": f"fc_{self._ids()}",
            "type": "function_call",
            "status": "in_progress",
            "call_id": call_id,
            "name": tool.name if tool else name,
            "arguments": "",
        }
        if tool is not None and tool.namespace is not None:
            item["namespace"] = tool.namespace
        return item

    def _arguments(self, text: str) -> Told:
        if self._pending is not None:
            self._pending.arguments += text
            return []
        if self._open is None:
            raise RuntimeError("arguments without a call")
        self._open["arguments"] += text
        where = self._where(self._open)
        return [("response.function_call_arguments.delta", {**where, "delta": text})]

    def _close_pending(self, status: str) -> Told:
        """The item of a call that is whole. One that the limit has cut is no call."""
        call, self._pending = self._pending, None
        if call is None or (status == "incomplete" and not _is_json(call.arguments)):
            return []
        fields = call_fields(call.tool, call.arguments)
        if fields is None:
            # Not what the tool takes: the client has to tell the model.
            events = self._begin(self._function_call(call.tool, call.tool.name, call.id))
            return [*events, *self._arguments(call.arguments), *self.close(status)]
        prefix = CALL_PREFIXES[call.tool.kind]
        item: dict[str, Any] = {
            "id": f"{prefix}_{self._ids()}",
            "type": "custom_tool_call" if prefix == "ctc" else f"{call.tool.kind}_call",
            "status": "in_progress",
            "call_id": call.id,
            **fields,
        }
        self.items.append(item)
        begun = {**item, "input": ""} if prefix == "ctc" else item
        events = [self._added(begun)]
        where = self._where(item)
        if prefix == "ctc":
            text = item["input"]
            events.append(("response.custom_tool_call_input.delta", {**where, "delta": text}))
            events.append(("response.custom_tool_call_input.done", {**where, "input": text}))
        item["status"] = "completed"
        return [*events, self._done(item)]

    # The events that all items have.

    def _where(self, item: dict[str, Any]) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": len(self.items) - 1}

    def _added(self, item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        fields = {"output_index": len(self.items) - 1, "item": _copy(item)}
        return "response.output_item.added", fields

    def _done(self, item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        fields = {"output_index": len(self.items) - 1, "item": _copy(item)}
        return "response.output_item.done", fields


def usage_object(usage: Usage) -> dict[str, Any]:
    """The token counts as the Responses API has them."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is now; it will grow on."""
    copied: dict[str, Any] = json.loads(json.dumps(item))
    return copied
