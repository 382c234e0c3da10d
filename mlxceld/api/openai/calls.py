"""Calls in a chat answer: as tool calls, as calls with free text, or as the older function call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mlxceld.api.openai.tools import INPUT, ToolUse
from mlxceld.api.parts import Call, CallArguments, CallStart


class CallWriter:
    """Writes the calls of one answer in the form that its request asks for."""

    def __init__(self, use: ToolUse) -> None:
        self._custom = use.custom
        self._legacy = use.legacy
        self._pending: tuple[int, Call] | None = None

    @property
    def finish_reason(self) -> str:
        """Why an answer with a call has ended."""
        return "function_call" if self._legacy else "tool_calls"

    def whole(self, calls: Sequence[Call]) -> dict[str, Any]:
        """The fields of a message that made these calls; none if there are none."""
        if not calls:
            return {}
        if self._legacy:
            return {"function_call": {"name": calls[0].name, "arguments": calls[0].arguments}}
        return {"tool_calls": [self._call(call) for call in calls]}

    def part(self, part: CallStart | CallArguments) -> list[dict[str, Any]]:
        """The deltas that a part of a call completes.

        Free text is inside JSON and comes when the call is over.
        """
        if isinstance(part, CallStart):
            before = self.rest()
            if part.name in self._custom:
                self._pending = (part.index, Call(part.id, part.name))
                return before
            called = {"name": part.name, "arguments": ""}
            if self._legacy:
                return [{"function_call": called}]
            begun = {"index": part.index, "id": part.id, "type": "function", "function": called}
            return [*before, {"tool_calls": [begun]}]
        if self._pending is not None:
            self._pending[1].arguments += part.text
            return []
        if self._legacy:
            return [{"function_call": {"arguments": part.text}}]
        more = {"index": part.index, "function": {"arguments": part.text}}
        return [{"tool_calls": [more]}]

    def rest(self) -> list[dict[str, Any]]:
        """The delta of the call that was held back, if one was."""
        if self._pending is None:
            return []
        index, call = self._pending
        self._pending = None
        return [{"tool_calls": [{"index": index, **self._call(call)}]}]

    def _call(self, call: Call) -> dict[str, Any]:
        if call.name in self._custom:
            custom = {"name": call.name, "input": _input(call.arguments)}
            return {"id": call.id, "type": "custom", "custom": custom}
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": call.id, "type": "function", "function": function}


def _input(arguments: str) -> str:
    """The free text in a call's arguments; they themselves where the model left the form."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return arguments
    text = given.get(INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments
