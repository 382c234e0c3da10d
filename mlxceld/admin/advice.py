"""What to change so that the cache helps: one line for each cause that an explanation shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxceld.admin.renderings import Rendering
from mlxceld.prompt_cache.departures import Departure
from mlxceld.prompt_cache.explain import ExplainEntry, ExplainOutcome, ExplainReport
from mlxceld.prompt_cache.rejects import RejectReason

SNAPSHOTS = "snapshots"
"""The name of the store whose entries cannot be cut."""

_CHANGING = re.compile(
    r"\d{4}-\d{2}-\d{2}|\d{1,2}:\d{2}|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b|\b1[6-9]\d{8}\b"
    r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b"
    r"|\b(?:january|february|march|april|june|july|august|september|october|november|december)\b"
    r"|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec) \d{1,2}\b"
    r"|\b\d{1,2} (?:jan|feb|mar|apr|may|jun|jul|aug|sep|sept|oct|nov|dec)\b"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}",
    re.IGNORECASE,
)
"""Dates, times and ids: what is another at each request."""

_DIFFERS: Mapping[str, str] = {
    "tools_order": "the same tools in another order: always send them in one order",
    "tools": "a request without these tools: send the same tools with every request",
    "tool_choice": "another tool_choice: send the same one with every request",
    "chat_template_kwargs": (
        "other chat_template_kwargs: send the same template arguments with every request"
    ),
    "raw_prompt": "a raw prompt of /v1/completions, which never shares with conversations",
    "unknown": (
        "another rendering: other tools, another tool_choice or other chat_template_kwargs;"
        " send the same with every request"
    ),
}


_DEPARTED: Mapping[str, str] = {
    "lru": "evicted (lru)",
    "ttl": "dropped (ttl)",
    "flush": "flushed",
    "resize": "evicted (resize)",
}

_LEFT: Mapping[str, tuple[str, str]] = {
    "lru": ("evicted", " to make room: raise the store's capacity (mlxctl cache resize)"),
    "ttl": ("evicted", " since nobody had used them: raise the store's ttl (mlxctl cache resize)"),
    "flush": ("flushed", ""),
    "resize": ("evicted", " when the budget was changed"),
}
"""The advice's code and remedy by the reason for which an entry left."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One cause with its remedy; ``code`` is for programs."""

    code: str
    text: str


def advise(
    report: ExplainReport, divergence: Mapping[str, Any] | None, rendering: Rendering | None
) -> list[Advice]:
    """What would let this request reuse more, the likeliest first; empty if it reuses all."""
    if report.outcome is ExplainOutcome.DISABLED:
        return [
            Advice(
                "disabled",
                "the store is off: set prompt_cache.enabled, with a capacity and a number of"
                " entries above 0 (mlxctl cache resize changes those two at run time)",
            )
        ]
    found = []
    if report.prompt_tokens < report.min_prefix:
        found.append(
            Advice(
                "prefix_too_short",
                f"the prompt has {report.prompt_tokens} tokens; fewer than"
                f" prompt_cache.min_prefix, {report.min_prefix}, are neither stored nor reused",
            )
        )
    if report.donation_reason is RejectReason.OVERSIZED:
        found.append(
            Advice(
                "oversized",
                "the prompt is larger than the whole store: raise prompt_cache.capacity_bytes",
            )
        )
    if rendering is not None and report.reused_tokens < report.prompt_tokens - 1:
        found.append(_about_rendering(rendering))
    if report.other_session is not None:
        found.append(_about_session(report, report.other_session))
    elif report.store == SNAPSHOTS and report.entry is not None:
        found += _about_snapshots(report, report.entry)
    elif report.reason is RejectReason.MODE_MISMATCH and report.entry is not None:
        entry = report.entry
        found.append(
            Advice(
                "mode_mismatch",
                f"{entry.matched_tokens} of {entry.tokens} tokens of the nearest entry match, and"
                " only whole entries are adopted here: use kv_backend paged with apc.enabled",
            )
        )
    if report.reason is RejectReason.BLOCK_BOUNDARY_FLOOR:
        found.append(
            Advice(
                "block_boundary_floor",
                "there is no room now to copy the part of a block that matches, and the whole"
                f" blocks before it have fewer than {report.min_prefix} tokens: raise"
                " kv_cache_budget, or send fewer requests at once",
            )
        )
    if report.departure is not None:
        found.append(_about_departure(report.departure))
    if divergence is not None and report.entry is not None:
        found += _about_divergence(report, divergence)
    if not found and report.outcome is ExplainOutcome.MISS:
        found.append(
            Advice("first_time", "nothing that begins like this is stored: it is the first time")
        )
    return found


def _about_rendering(rendering: Rendering) -> Advice:
    text = f"what is stored comes from {_DIFFERS[rendering.differs]}"
    if rendering.tool is not None:
        text += f"; the first tool that differs is {rendering.tool!r}"
    return Advice(f"rendering:{rendering.differs}", text)


def _about_session(report: ExplainReport, entry: ExplainEntry) -> Advice:
    return Advice(
        "other_session",
        f"{entry.tokens} of the {report.prompt_tokens} tokens are stored for session"
        f" {entry.session}: this model resumes from snapshots, which belong to the session that"
        " stored them. Send its key with the request (prompt_cache_key, user or metadata.user_id)",
    )


def _about_snapshots(report: ExplainReport, entry: ExplainEntry) -> list[Advice]:
    """Where more matches than can be resumed: a state cannot be cut."""
    if entry.matched_tokens <= max(report.reused_tokens, report.min_prefix - 1):
        return []
    kept = (
        f"the longest that is kept of this prompt has {report.reused_tokens}"
        if report.reused_tokens
        else "none is kept of this prompt"
    )
    return [
        Advice(
            "snapshot_points",
            f"{entry.matched_tokens} tokens match the nearest snapshot, but this model resumes only"
            f" where a state was kept, and {kept}: after the system text and tools (a prompt can"
            " be kept with mlxctl cache warm) and at the end of each turn",
        )
    ]


def _about_departure(departure: Departure) -> Advice:
    code, remedy = _LEFT[departure.reason]
    return Advice(
        code,
        f"{departure.matched_tokens} of its tokens were stored and"
        f" {_DEPARTED[departure.reason]} {departure.seconds_ago:.0f} s ago{remedy}",
    )


def _about_divergence(report: ExplainReport, divergence: Mapping[str, Any]) -> list[Advice]:
    text = f"{divergence['before'][-24:]}{divergence['text']}{divergence['after'][:24]}"
    at = divergence["token"]
    if _CHANGING.search(text):
        return [
            Advice(
                "changing_text",
                f"the prompt differs at token {at}, in what looks like a date, a time or an id:"
                " move it behind what stays the same, to the last user message",
            )
        ]
    computed = f"from token {report.reused_tokens} on it is computed"
    if report.reused_tokens == at:
        computed = "everything before it is reused, everything from there on is computed"
    return [Advice("diverges", f"the prompt differs from what is stored at token {at}: {computed}")]
