"""Content blocks that chat templates have no place for, as text of the conversation.

Each block becomes the same text in every request, so that the prompt of the next turn begins with
that of this one. Ids, signatures and encrypted contents are left out: they say nothing to a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mlxceld.api.body import describe
from mlxceld.api.errors import invalid
from mlxceld.api.notes import Notes
from mlxceld.api.unseen import left_out

_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})

_UNSEEN = frozenset({"image", "audio", "video", "input_audio"})
"""Blocks without which the answer would be wrong, and which no text can stand for."""

_WITHOUT_TEXT: Mapping[str, str] = {
    "container_upload": "a file in a container; there is none here",
    "fallback": "says which model answered",
    "mcp_tool_listing": "tools of an MCP server, which only its own API calls",
    "tool_addition": "tools change in system messages only",
    "tool_removal": "tools change in system messages only",
}

_NOT_SHOWN = frozenset(
    {
        "cache_control",
        "caller",
        "citations",
        "encrypted_content",
        "encrypted_index",
        "encrypted_stdout",
        "id",
        "signature",
        "tool_use_id",
        "type",
    }
)


def text_of(
    block: Mapping[str, Any], where: str, notes: Notes, *, expected: str, in_result: bool = False
) -> str | None:
    """A block as text; None if it is skipped, which ``notes`` then says.

    ``where`` is its path; ``in_result`` says that a tool's result is its place. Raises a 400
    ApiError for images elsewhere, for documents that are no text, and for
    blocks that are malformed; ``expected`` names the types that belong there.
    """
    kind = block.get("type")
    if kind == "text" or (kind is None and "text" in block):
        return string(block, "text", where)
    if kind is None:
        path = f"{where}.type"
        raise invalid(path, f"{path} is missing", code="missing_required_parameter")
    if kind in _UNSEEN and in_result:
        return left_out(kind, where, notes)
    if not isinstance(kind, str) or kind in _UNSEEN or kind in ("tool_use", "tool_result"):
        path = f"{where}.type"
        raise invalid(
            path, f"{path} is {describe(kind)}, expected {expected}; this model takes text"
        )
    if kind in _WITHOUT_TEXT:
        notes.skip(where, f"{kind} ({_WITHOUT_TEXT[kind]})")
        return None
    match kind:
        case "document":
            text = _document(block, where)
            return _tagged(kind, text, title=block.get("title"), context=block.get("context"))
        case "search_result":
            text = _joined(block.get("content"), f"{where}.content")
            return _tagged(kind, text, title=block.get("title"), source=block.get("source"))
        case "tool_reference":
            return _tagged(kind, string(block, "tool_name", where))
        case "compaction":
            return _compaction(block, where, notes)
    if kind in _CALLS:
        name, server = string(block, "name", where), block.get("server_name")
        return _tagged(kind, _json(block.get("input") or {}), name=name, server=server)
    if kind.endswith("_tool_result"):
        return _tagged(kind, _readable(block.get("content"), where, notes))
    if "source" in block:
        path = f"{where}.type"
        raise invalid(
            path, f"{path} is {describe(kind)}, expected {expected}; this model takes text"
        )
    return _tagged(kind, _readable(block, where, notes))


def string(block: Mapping[str, Any], name: str, where: str) -> str:
    """A field that has to be text; raises a 400 ApiError that names it."""
    value = block.get(name)
    if isinstance(value, str):
        return value
    path = f"{where}.{name}"
    if name not in block:
        raise invalid(path, f"{path} is missing", code="missing_required_parameter")
    raise invalid(path, f"{path} is {describe(value)}, expected a string")


def _document(block: Mapping[str, Any], where: str) -> str:
    source, path = block.get("source"), f"{where}.source"
    if not isinstance(source, dict):
        raise invalid(path, f"{path} is {describe(source)}, expected an object")
    kind = source.get("type")
    if kind == "text":
        return string(source, "data", path)
    if kind == "content":
        return _joined(source.get("content"), f"{path}.content")
    raise invalid(
        f"{path}.type",
        f"{path}.type is {describe(kind)}, expected 'text' or 'content'; this model takes text",
    )


def _joined(content: Any, path: str) -> str:
    """A string, or the text blocks of a list joined by newlines."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(path, f"{path} is {describe(content)}, expected a string or a list")
    texts = []
    for index, block in enumerate(content):
        where = f"{path}[{index}]"
        if not isinstance(block, dict):
            raise invalid(where, f"{where} is {describe(block)}, expected an object")
        if block.get("type") != "text":
            raise invalid(
                f"{where}.type",
                f"{where}.type is {describe(block.get('type'))}, expected 'text';"
                " this model takes text",
            )
        texts.append(string(block, "text", where))
    return "\n".join(texts)


def _compaction(block: Mapping[str, Any], where: str, notes: Notes) -> str | None:
    content = block.get("content")
    if isinstance(content, str):
        return content
    notes.skip(where, "compaction (without its text)")
    return None


def _readable(value: Any, where: str, notes: Notes) -> str:
    """What of a tool's result a model can read: its text, else JSON without what is opaque."""
    shown = _shown(value, where, notes)
    if isinstance(shown, str):
        return shown
    if isinstance(shown, list) and all(isinstance(one, str) for one in shown):
        return "\n".join(shown)
    return "" if shown is None else _json(shown)


def _shown(value: Any, where: str, notes: Notes) -> Any:
    if isinstance(value, list):
        return [_shown(one, where, notes) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "text" and isinstance(value.get("text"), str):
        return value["text"]
    left_out = set(_NOT_SHOWN)
    if value.get("type") == "base64":
        notes.skip(where, f"{value.get('media_type') or 'binary'} data in a tool's result")
        left_out.add("data")
    return {key: _shown(one, where, notes) for key, one in value.items() if key not in left_out}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tagged(kind: str, text: str, **attributes: Any) -> str:
    given = "".join(
        f" {name}={_json(value)}" for name, value in attributes.items() if isinstance(value, str)
    )
    return f"<{kind}{given}>\n{text}\n</{kind}>"
