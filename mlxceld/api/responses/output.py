"""A response's output items, built from the parts of an answer and told as they grow."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from mlxceld.api.parts import CallArguments, CallStart, Part, Reasoning, Text
from mlxceld.engine.events import Usage


class OutputItems:
    """The items of one response, in order, one open at a time.

    Every method returns what to tell of it, as pairs of an event's type and its fields.
    ``ids`` makes the items' ids.
    """

    def __init__(self, ids: Callable[[], str]) -> None:
        self._ids = ids
        self._open: dict[str, Any] | None = None
        self.items: list[dict[str, Any]] = []

    def add(self, parts: Sequence[Part]) -> list[tuple[str, dict[str, Any]]]:
        """More of the answer."""
        events: list[tuple[str, dict[str, Any]]] = []
        for part in parts:
            match part:
                case Text():
                    if part.text:
                        events += self._text(part.text)
                case Reasoning():
                    events += self._reasoning(part.text)
                case CallStart():
                    events += self._begin(
                        {
                            "id": f"fc_{self._ids()}",
                            "type": "function_call",
                            "status": "in_progress",
                            "call_id": part.id,
                            "name": part.name,
                            "arguments": "",
                        }
                    )
                case CallArguments():
                    events += self._arguments(part.text)
        return events

    def close(self, status: str = "completed") -> list[tuple[str, dict[str, Any]]]:
        """End the open item with a status; no event if none is open."""
        item, self._open = self._open, None
        if item is None:
            return []
        where = {"item_id": item["id"], "output_index": len(self.items) - 1}
        events: list[tuple[str, dict[str, Any]]] = []
        if item["type"] == "function_call":
            events.append(
                (
                    "response.function_call_arguments.done",
                    {**where, "name": item["name"], "arguments": item["arguments"]},
                )
            )
        elif item["type"] == "reasoning":
            text = item["content"][0]["text"]
            events.append(
                ("response.reasoning_text.done", {**where, "content_index": 0, "text": text})
            )
        else:
            part = item["content"][0]
            where_part = {**where, "content_index": 0}
            done = {**where_part, "text": part["text"], "logprobs": []}
            events.append(("response.output_text.done", done))
            events.append(("response.content_part.done", {**where_part, "part": dict(part)}))
        item["status"] = status
        events.append(
            (
                "response.output_item.done",
                {"output_index": len(self.items) - 1, "item": _copy(item)},
            )
        )
        return events

    def ensure_text(self) -> list[tuple[str, dict[str, Any]]]:
        """An answer of nothing is a message without text."""
        return [] if self.items else self._begin_message()

    def message(self) -> dict[str, Any]:
        """The items as one message of the assistant, in the shape of chat completions."""
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        calls = []
        for item in self.items:
            if item["type"] == "message":
                message["content"] += item["content"][0]["text"]
            elif item["type"] == "reasoning":
                known = message.get("reasoning_content", "")
                message["reasoning_content"] = known + item["content"][0]["text"]
            else:
                function = {"name": item["name"], "arguments": item["arguments"]}
                calls.append({"id": item["call_id"], "type": "function", "function": function})
        if calls:
            message["tool_calls"] = calls
        return message

    def _begin(self, item: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        events = self.close()
        self._open = item
        self.items.append(item)
        added = {"output_index": len(self.items) - 1, "item": _copy(item)}
        return [*events, ("response.output_item.added", added)]

    def _begin_message(self) -> list[tuple[str, dict[str, Any]]]:
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
        where = {
            "item_id": item["id"],
            "output_index": len(self.items) - 1,
            "content_index": 0,
        }
        return [*events, ("response.content_part.added", {**where, "part": dict(part)})]

    def _text(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        events: list[tuple[str, dict[str, Any]]] = []
        if self._open is None or self._open["type"] != "message":
            events += self._begin_message()
        return [*events, self._grow("response.output_text.delta", text, logprobs=[])]

    def _reasoning(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        events: list[tuple[str, dict[str, Any]]] = []
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
        where = {"item_id": self._open["id"], "output_index": len(self.items) - 1}
        return kind, {**where, "content_index": 0, "delta": text, **more}

    def _arguments(self, text: str) -> list[tuple[str, dict[str, Any]]]:
        if self._open is None:
            raise RuntimeError("arguments without a call")
        self._open["arguments"] += text
        where = {"item_id": self._open["id"], "output_index": len(self.items) - 1}
        return [("response.function_call_arguments.delta", {**where, "delta": text})]


def usage_object(usage: Usage) -> dict[str, Any]:
    """The token counts as the Responses API has them."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is now; it will grow on."""
    copied: dict[str, Any] = json.loads(json.dumps(item))
    return copied
