"""Files with a prompt to warm: a text, or a conversation as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FIELDS = ("messages", "prompt", "session", "tools")


class PromptFileError(ValueError):
    """A file that holds no prompt; the text names the file and what was expected."""


def read_prompt_file(path: Path) -> dict[str, Any]:
    """What ``POST cache/warm`` takes, from a file.

    A file that is no JSON is a system prompt, whole. JSON is a list of messages, or an object with
    ``messages`` (and ``tools``) or ``prompt``, and perhaps ``session``. Raises PromptFileError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise PromptFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise PromptFileError(f"{path}: is not UTF-8 text") from None
    if not text.strip():
        raise PromptFileError(f"{path}: is empty, expected a prompt")
    begins_as_json = text.lstrip()[0] in "[{"
    if not begins_as_json and path.suffix != ".json":
        return {"messages": [{"role": "system", "content": text}]}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if path.suffix == ".json":
            raise PromptFileError(f"{path}: is not JSON: {error}") from None
        return {"messages": [{"role": "system", "content": text}]}
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict) or not ({"messages", "prompt"} & value.keys()):
        raise PromptFileError(
            f"{path}: expected a list of messages, or an object with messages or prompt"
        )
    # A whole request may be given as it was recorded; what does not matter for its prompt is left.
    return {name: value[name] for name in FIELDS if value.get(name) is not None}
