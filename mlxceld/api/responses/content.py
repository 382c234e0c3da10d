"""From the content of an item to text, or to text parts in the shape of chat completions."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from mlxceld.api.body import describe
from mlxceld.api.errors import ApiError, invalid
from mlxceld.api.notes import Notes
from mlxceld.api.unseen import left_out

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_TEXT_FILE = re.compile(r"data:(?:text/[^;,]+|application/json)(?:;[^;,]+=[^;,]*)*(;base64)?,")


def content_of(
    content: Any, path: str, notes: Notes, *, in_result: bool = False
) -> str | list[dict[str, Any]]:
    """A string, or several text parts; null is empty text.

    ``in_result`` says that it is what a tool gave. Raises a 400 ApiError that names the part
    which is no text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(path, f"{path} is {describe(content)}, expected a string or a list of parts")
    texts = []
    for index, part in enumerate(content):
        where = f"{path}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if in_result and kind in ("input_image", "image"):
            text: str | None = left_out(kind, where, notes)
        else:
            text = _part(part, where, notes)
        if text is not None:
            texts.append(text)
    # One part alone is a string, as other dialects send it.
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts] or ""


def string_of(item: dict[str, Any], name: str, where: str) -> str:
    """A field that has to be a string."""
    value = item.get(name)
    if not isinstance(value, str):
        raise wrong(item, name, where, "a string")
    return value


def wrong(item: dict[str, Any], name: str, where: str, expected: str) -> ApiError:
    """A 400 about one field of an item that is missing or of another kind."""
    path = f"{where}.{name}"
    if item.get(name) is None:
        return invalid(path, f"{path} is missing", code="missing_required_parameter")
    return invalid(path, f"{path} is {describe(item[name])}, expected {expected}")


def _part(part: Any, where: str, notes: Notes) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise invalid(where, f"{where} is {describe(part)}, expected an object")
    match part.get("type"):
        case "refusal":
            return string_of(part, "refusal", where)
        case "input_file":
            return _file(part, where)
        case "encrypted_content":
            notes.skip(where, "encrypted content, which only the vendor's server can read")
            return None
        case kind if kind in _TEXT_PARTS:
            return string_of(part, "text", where)
    raise wrong(part, "type", where, "'input_text' or 'output_text'")


def _file(part: dict[str, Any], where: str) -> str:
    """The text of a file that is sent as a data URL of text, under its name."""
    data = part.get("file_data")
    head = _TEXT_FILE.match(data) if isinstance(data, str) else None
    if head is None or not isinstance(data, str):
        raise invalid(
            f"{where}.type",
            f'{where}.type is "input_file"; of files only text is taken, as file_data that begins'
            ' "data:text/plain;base64,"',
        )
    body = data[head.end() :]
    try:
        text = base64.b64decode(body, validate=True).decode() if head[1] else body
    except (binascii.Error, UnicodeDecodeError):
        raise invalid(
            f"{where}.file_data", f"{where}.file_data is not UTF-8 text in base64"
        ) from None
    name = part.get("filename")
    return f"{name}:\n{text}" if isinstance(name, str) and name else text
