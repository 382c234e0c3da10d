"""The response object: what each of its forms carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlxceld.api.responses.output import OutputItems, usage_object
from mlxceld.api.responses.schemas import ResponsesRequest
from mlxceld.engine.events import Usage

NOTES_KEY = "mlxceld_notes"
"""The key in ``metadata`` with what the request carried and was skipped."""

_METADATA_LIMIT = 512
"""Characters of a value in ``metadata``, as the vendor's API has it."""


def response_head(
    fields: ResponsesRequest,
    body: dict[str, Any],
    notes: Sequence[str],
    *,
    response_id: str,
    model: str,
    created_at: int,
) -> dict[str, Any]:
    """A response that has begun; ``body`` is the request as it was sent, for what is echoed."""
    metadata = dict(fields.metadata or {})
    if notes:
        metadata[NOTES_KEY] = "; ".join(notes)[:_METADATA_LIMIT]
    reasoning = fields.reasoning
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "model": model,
        "output": [],
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "store": fields.store is not False,
        "temperature": 1.0 if fields.temperature is None else fields.temperature,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": 1.0 if fields.top_p is None else fields.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": fields.user,
        "metadata": metadata,
    }


def response_finished(
    head: dict[str, Any], items: OutputItems, reason: str, usage: Usage
) -> dict[str, Any]:
    """The response when it has ended; its last item is closed."""
    cut = reason == "length"
    items.close("incomplete" if cut else "completed")
    return {
        **head,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": items.items,
        "usage": usage_object(usage),
    }
