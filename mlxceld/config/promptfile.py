"""Files with a prompt to warm: a text, or a conversation as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_PROMPTS = frozenset({"messages", "prompt", "input"})


class PromptFileError(ValueError):
    """A file that holds no prompt; the text names the file and what was expected."""


def read_prompt_file(path: Path) -> dict[str, Any]:
    """What ``POST cache/warm`` takes, from a file.

    A file that is no JSON is a system prompt, whole. JSON is a list of messages, or the body of a
    request as it was sent to any of the APIs, and perhaps ``session``. Raises PromptFileError.
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
    if not isinstance(value, dict) or _PROMPTS.isdisjoint(value):
        raise PromptFileError(
            f"{path}: expected a list of messages, or a request's body with messages, input or"
            " prompt"
        )
    return {name: given for name, given in value.items() if name != "session" or given}
