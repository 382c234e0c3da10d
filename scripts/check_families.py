"""Run a tiny model of every family of the installed mlx-lm through the engine; write the page.

    python scripts/check_families.py              all families, those already done left out
    python scripts/check_families.py FAMILY ...   these, anew

Each family has a process of its own and a bounded time. Results are kept in ``build/families.json``
and written to ``docs/families.md``. The exit code is 1 if an answer was wrong or failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "families.json"
PAGE = ROOT / "docs" / "families.md"
SECONDS = 300

HEADER = """# Model families

How the engine serves each family of mlx-lm {mlx_lm}, found by running a tiny model of it with
random weights: alone, beside prompts of unequal length, with stored and shared beginnings, past the
lengths at which its attention changes, and with too little memory for all. Every answer was
compared, token by token, with mlx-lm's own model run alone, in float32 on a CPU.
`python scripts/check_families.py` makes this page.

*works*: in batches, prompts reused. *row by row*: each request in a pass of its own within the
step, since a batch would change its answer. *uncached*: nothing is reused. *refused*: it does not
load. The reasons are those in the log and in `mlxctl status`. Families that were not run are at the
end.

| family | result | batching | prompt reuse | shared prefixes | tokens compared |
|---|---|---|---|---|---|
"""


def main() -> int:
    """Check what was asked for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("family", nargs="*")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    if options.inside:
        return _inside(options.family[0])
    from family_configs import UNBUILT, families

    results = _read()
    for family in options.family or [f for f in families() if f not in {*results, *UNBUILT}]:
        results[family] = _run(family)
        print(family, json.dumps(results[family]), flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True))
    PAGE.write_text(page(results, UNBUILT, version("mlx-lm")))
    return int(any(result["status"] == "wrong" for result in results.values()))


def page(results: dict[str, dict[str, Any]], unbuilt: dict[str, str], mlx_lm: str) -> str:
    """The page of these results."""
    lines, reasons = [], []
    for family, result in sorted(results.items()):
        cells = [family, result["status"], result["batching"], result["reuse"], result["sharing"]]
        lines.append("| " + " | ".join([*cells, str(result["compared"] or "")]) + " |")
        said = [*result["wrong"], *result["reasons"]]
        if said:
            reasons.append(f"- **{family}**: {'; '.join(said)}")
    missing = [f"- **{family}**: {why}" for family, why in sorted(unbuilt.items())]
    return "\n".join(
        [
            HEADER.format(mlx_lm=mlx_lm) + "\n".join(lines),
            "",
            "## Reasons",
            "",
            *reasons,
            "",
            "## Not run",
            "",
            *missing,
            "",
        ]
    )


def _run(family: str) -> dict[str, Any]:
    """One family in a process of its own, which may crash or hang."""
    command = [sys.executable, __file__, "--inside", family]
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    lost = {"family": family, "batching": "", "reuse": "", "sharing": "", "compared": 0}
    lost |= {"status": "wrong", "reasons": [], "preempted": 0}
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and file
            command, capture_output=True, text=True, timeout=SECONDS, env=environ, check=False
        )
    except subprocess.TimeoutExpired:
        return lost | {"wrong": [f"not done after {SECONDS} seconds"]}
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return lost | {"wrong": [f"the process ended with {done.returncode}: {last}"]}
    return found


def _inside(family: str) -> int:
    from mlxceld.models.blas import interpose

    os.nice(10)
    interpose()
    from family_checks import check_family

    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(check_family(family, Path(folder)))
    print(json.dumps(result.as_json()))
    return 0


def _read() -> dict[str, dict[str, Any]]:
    try:
        found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


if __name__ == "__main__":
    sys.exit(main())
