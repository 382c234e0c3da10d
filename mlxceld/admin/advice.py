"""What to change so that the cache helps: one line for each cause that an explanation shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxceld.prompt_cache.explain import ExplainOutcome, ExplainReport
from mlxceld.prompt_cache.rejects import RejectReason

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


@dataclass(frozen=True, slots=True)
class Advice:
    """One cause with its remedy; ``code`` is for programs."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Rendering:
    """A stored prompt that was rendered in another way, and what ``differs`` from this request."""

    matched_tokens: int
    differs: str


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
        found.append(
            Advice(
                f"rendering:{rendering.differs}",
                f"what is stored comes from {_DIFFERS[rendering.differs]}",
            )
        )
    if report.reason is RejectReason.MODE_MISMATCH and report.entry is not None:
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
    if divergence is not None and report.entry is not None:
        found += _about_divergence(divergence)
    if not found and report.outcome is ExplainOutcome.MISS:
        found.append(_never_seen(report))
    return found


def _about_divergence(divergence: Mapping[str, Any]) -> list[Advice]:
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
    return [
        Advice(
            "diverges",
            f"the prompt differs from what is stored at token {at}: everything before it is"
            " shared, everything from there on is computed",
        )
    ]


def _never_seen(report: ExplainReport) -> Advice:
    if report.evicted:
        return Advice(
            "evicted",
            f"nothing of it is stored; {report.evicted} entries have been evicted since the start:"
            " see evictions_lru and evictions_ttl in mlxctl cache stats, and raise the budget",
        )
    return Advice("first_time", "nothing that begins like this is stored: it is the first time")
