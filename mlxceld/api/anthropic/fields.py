"""Fields of Anthropic's requests that are not honoured, and what becomes of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxceld.api.body import describe
from mlxceld.api.errors import ApiError
from mlxceld.api.known_fields import FieldTable, Rule, empty
from mlxceld.api.notes import Notes

_THREADS = "thread"


def _edits_nothing(value: Any) -> bool:
    """Whether a ``context_management`` leaves the conversation as it is."""
    edits = value.get("edits") if isinstance(value, dict) else None
    return not edits or all(
        isinstance(edit, dict)
        and edit.get("type") == "clear_thinking_20251015"
        and edit.get("keep") == "all"
        for edit in edits
    )


_SKIPPED = {
    "container": Rule("there are no containers here", empty),
    "context_management": Rule("the conversation is not edited here", _edits_nothing),
    "mcp_servers": Rule("no MCP server is called from here", empty),
}

_HARMLESS = frozenset(
    {
        "betas",
        "billing_policy",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)

_COMPACTION = Rule("expected null: conversations are not summarized here")

MESSAGE_FIELDS = FieldTable(
    refused={"compaction": _COMPACTION}, skipped=_SKIPPED, harmless=_HARMLESS
)
"""Of ``POST /v1/messages``, besides ``thread``."""

COUNT_FIELDS = FieldTable(skipped=_SKIPPED, harmless=_HARMLESS | {"compaction"})
"""Of ``POST /v1/messages/count_tokens``: the conversation counts as it was sent."""

REFUSED_IN_THE_SDKS_FORM = frozenset({_THREADS})


def check_fields(table: FieldTable, body: Mapping[str, Any], notes: Notes) -> None:
    """Refuse or note what a body carries of these; raises a 400 ApiError.

    A thread would be kept by the vendor's server, and a request that continues one brings only
    its end. The refusal is the one after which the vendor's SDK sends the whole conversation.
    """
    if (thread := body.get(_THREADS)) is not None:
        raise ApiError(
            400,
            f"thread is {describe(thread)}, expected null: conversations are not kept here;"
            " send all messages",
            param=_THREADS,
            anthropic={
                "details": {
                    "error_code": "thread_unsupported_request",
                    "unsupported": [_THREADS],
                }
            },
        )
    table.check(body, notes)
    config = body.get("output_config")
    if isinstance(config, dict) and config.get("task_budget") is not None:
        notes.skip("output_config.task_budget", "the model is not told of a budget")
