"""The checked-in table of what each scenario takes, and how to write it anew.

    python tests/work_table.py            shows what has changed; exit code 1 if anything has
    python tests/work_table.py --write    makes the table what the code does now

A change of the table belongs into the change that causes it, and is read there like code.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine_harness import CoreHarness
    from mlxceld.models.loading import LoadedModel

TABLE = Path(__file__).with_suffix(".json")

FAMILIES = ("llama", "deepseek_v3", "qwen3_next")
"""Blocks that are read in place, blocks that are gathered, and snapshots."""

HINT = "if this is meant to be so: python tests/work_table.py --write"

Row = Mapping[str, int]
Table = Mapping[str, Mapping[str, Row]]


def make_core(model: LoadedModel) -> CoreHarness:
    """A core with a daemon's defaults but for its chunks, which are small like its prompts."""
    from engine_harness import CoreHarness
    from work_scenarios import CHUNK_TOKENS

    return CoreHarness(
        model, cache=True, backend="paged", prefill_chunk=CHUNK_TOKENS, min_prefix=32
    )


def read_table() -> Table:
    """The table: the rows of each family by scenario."""
    table: Table = json.loads(TABLE.read_text())
    return table


def difference(name: str, wanted: Row | None, counted: Row) -> str:
    """What is not as in the table, a line each; empty if all is."""
    if wanted is None:
        return f"{name}: not in the table"
    lines = []
    for what in dict.fromkeys((*wanted, *counted)):
        before, now = wanted.get(what, 0), counted.get(what, 0)
        if before != now:
            share = f", {100 * (now - before) / before:+.1f}%" if before else ""
            lines.append(f"  {what}: {before:,} -> {now:,} ({now - before:+,}{share})")
    return "\n".join([f"{name}:", *lines]) if lines else ""


def as_text(table: Table) -> str:
    """The table as JSON, one row a line."""
    families = []
    for family, rows in table.items():
        width = max(len(name) for name in rows) + 3
        lines = [f"    {json.dumps(name) + ':':{width}} {json.dumps(rows[name])}" for name in rows]
        families.append(f"  {json.dumps(family)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(families) + "\n}\n"


async def _count_all() -> Table:
    from engine_harness import load_tiny
    from tiny_models import TinyModels
    from work_scenarios import SCENARIOS

    table: dict[str, dict[str, Row]] = {}
    with tempfile.TemporaryDirectory() as root:
        for family in FAMILIES:
            model = load_tiny(TinyModels(Path(root)).folder(family))
            table[family] = {
                name: (await scenario.count(make_core(model))).as_row()
                for name, scenario in SCENARIOS.items()
            }
    return table


def main() -> int:
    """Compare, and write where that is asked for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make the table what the code does")
    write = parser.parse_args().write
    counted = asyncio.run(_count_all())
    known: Table = read_table() if TABLE.exists() else {}
    changes = [
        text
        for family, rows in counted.items()
        for name, row in rows.items()
        if (text := difference(f"{family} {name}", known.get(family, {}).get(name), row))
    ]
    print("\n".join(changes) or "all as in the table")
    if write:
        TABLE.write_text(as_text(counted))
        return 0
    if changes:
        print(HINT, file=sys.stderr)
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
