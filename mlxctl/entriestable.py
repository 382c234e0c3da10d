"""Stored entries as a table."""

from __future__ import annotations

from typing import Any

from mlxctl import tables
from mlxctl.rowlisting import RowListing

_HEADERS = (
    "DIGEST",
    "STORE",
    "SESSION",
    "CLIENT",
    "TOKENS>",
    "SHARED/OWN>",
    "STATE>",
    "BYTES>",
    "AGE>",
    "IDLE>",
    "HITS>",
    "ORIGIN",
    "PINS>",
)

_DROPPED = (
    *("CLIENT", "AGE>", "ORIGIN", "STATE>", "STORE", "SHARED/OWN>", "PINS>", "SESSION"),
    *("HITS>", "IDLE>"),
)
"""What a narrow terminal is spared first."""


def entries_table(entries: list[dict[str, Any]]) -> RowListing:
    """One row an entry: blocks for what lies in the pool, the size of the state for the rest."""
    count, size, duration = tables.count_text, tables.size_text, tables.duration_text
    return RowListing(
        _HEADERS,
        (
            (
                entry["digest"],
                entry["store"],
                entry["session"],
                entry["client"] or "-",
                count(entry["tokens"]),
                "-"
                if entry["blocks"] is None
                else f"{count(entry['blocks_shared'])}/{count(entry['blocks_own'])}",
                "-" if entry["state_bytes"] is None else size(entry["state_bytes"]),
                size(entry["bytes"]),
                duration(entry["age_seconds"]),
                duration(entry["idle_seconds"]),
                count(entry["hits"]),
                entry["origin"],
                count(entry["pins"]) if entry["pins"] else "-",
            )
            for entry in entries
        ),
        identifiers=("DIGEST", "SESSION"),
        dropped=_DROPPED,
    )
