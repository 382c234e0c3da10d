"""The namespace of a rendered prompt: prefixes are shared only between prompts of one signature."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

_DOMAIN = "mlxceld:template-signature:v1"
_TOOLS_DOMAIN = "mlxceld:tools-digest:v1"


def template_signature(
    source: str,
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: object,
    template_kwargs: Mapping[str, Any] | None,
) -> str:
    """SHA-256 in hex over everything but the messages that shapes a rendering.

    An absent ``tool_choice`` and "auto" differ, absent and empty tools or arguments do not; the
    order of tools counts, the order of keys inside them does not.
    """
    digest = hashlib.sha256()
    _add(digest, _DOMAIN)
    _add(digest, source)
    _add(digest, canonical_json(dict(template_kwargs or {})))
    _add(digest, _choice_tag(tool_choice))
    _add(digest, tools_digest(tools))
    return digest.hexdigest()


def tools_digest(tools: Sequence[Mapping[str, Any]] | None) -> str:
    """SHA-256 in hex over the tools, in their order."""
    digest = hashlib.sha256()
    _add(digest, _TOOLS_DOMAIN)
    tools = tools or ()
    digest.update(len(tools).to_bytes(8, "little"))
    for tool in tools:
        _add(digest, canonical_json(tool))
    return digest.hexdigest()


def canonical_json(value: object) -> str:
    """JSON with sorted keys and no spaces; what JSON does not know appears as its repr."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=repr)


def _choice_tag(choice: object) -> str:
    if choice is None:
        return "__absent__"
    if isinstance(choice, str):
        return f"mode:{choice}"
    return f"specific:{canonical_json(choice)}"


def _add(digest: hashlib._Hash, field: str) -> None:
    """Add a field behind its length, so that no two lists of fields give the same bytes."""
    raw = field.encode("utf-8", "surrogatepass")
    digest.update(len(raw).to_bytes(8, "little"))
    digest.update(raw)
