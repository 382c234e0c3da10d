"""Tools for models whose chat template has no place for them: in words, in the system message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

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


def with_tools_in_words(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """Prepared messages with the tools in the system message and calls and results as text.

    Without ``tools`` only calls and results that the conversation has already are written out.
    """
    written = [_as_text(message) for message in messages]
    if not tools:
        return written
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    words = _INTRODUCTION.format(tools=listed)
    if written and written[0]["role"] == "system":
        first = written[0]
        text = f"{first['content']}\n\n{words}" if first["content"] else words
        return [{**first, "content": text}, *written[1:]]
    return [{"role": "system", "content": words}, *written]


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(message)
    if changed["role"] in ("tool", "function"):
        body = f"<tool_response>\n{changed['content']}\n</tool_response>"
        return {"role": "user", "content": body}
    calls = changed.pop("tool_calls", None)
    if calls:
        texts = [str(changed["content"])] if changed["content"] else []
        for call in calls:
            function = {
                "name": call["function"]["name"],
                "arguments": call["function"].get("arguments", {}),
            }
            body = json.dumps(function, ensure_ascii=False)
            texts.append(f"<tool_call>\n{body}\n</tool_call>")
        changed["content"] = "\n".join(texts)
    return changed
