"""Tools, calls and results in words, for models whose chat template has no place for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mlxceld.models.fitting.conversation import SYSTEM_ROLES, Conversation, Message, user_turn

_INTRODUCTION = """# Tools

You may call one or more functions. Their signatures:
<tools>
{tools}
</tools>

For each call write one JSON object with the function's name and arguments:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""


def tool_as_rendered(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as templates see it: how strictly it is kept to is not the model's business."""
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    kept = {name: value for name, value in function.items() if name != "strict"}
    return {**tool, "function": kept}


def tools_in_words(conversation: Conversation) -> Conversation:
    """The tools are described in the system message, and the template is given none."""
    if not conversation.tools:
        return conversation
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in conversation.tools)
    words = _INTRODUCTION.format(tools=listed)
    messages = conversation.messages
    if messages and messages[0]["role"] in SYSTEM_ROLES:
        first = messages[0]
        text = f"{first['content']}\n\n{words}" if first["content"] else words
        return Conversation([{**first, "content": text}, *messages[1:]])
    return Conversation([{"role": "system", "content": words}, *messages])


def results_in_words(conversation: Conversation) -> Conversation:
    """Results of tools are turns of the user."""
    return conversation.with_messages(
        [
            user_turn(f"<tool_response>\n{message['content']}\n</tool_response>")
            if message["role"] == "tool"
            else message
            for message in conversation.messages
        ]
    )


def calls_in_words(conversation: Conversation) -> Conversation:
    """Calls of tools are text of the assistant's turn."""
    return conversation.with_messages([_calls_written(m) for m in conversation.messages])


def _calls_written(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [message["content"]] if message["content"] else []
    for call in calls:
        function = {
            "name": call["function"].get("name"),
            "arguments": call["function"]["arguments"],
        }
        body = json.dumps(function, ensure_ascii=False)
        texts.append(f"<tool_call>\n{body}\n</tool_call>")
    written = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**written, "content": "\n".join(texts)}
