"""Runs the clients that are installed in a folder, each against models that answer by a script.

Each agent talks twice and uses a tool once, on a model with keys and values alone and on a hybrid
one, with ChatML and with a strict chat template; SDKs are run once, and with ``--demo`` again on
the demo model, whose answers make sense. Prints a line a case: what came of it, and the
share of an agent's second turn that was read from the cache. Exit code 1: a case failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import coding_agents
import sdks
from scripted_daemon import TEMPLATES
from scripted_model import HYBRID, PAGEABLE
from verdict import Verdict

FIRST = next(iter(TEMPLATES))

TURN_SHARE = 0.95
"""How much of an agent's second turn has to come from the cache."""

CLIENTS = {
    "Claude Code": coding_agents.claude_code,
    "Codex": coding_agents.codex,
    "OpenCode": coding_agents.opencode,
    "SDKs and frameworks in Python": sdks.python_cases,
    "AI SDK": sdks.ai_sdk_cases,
}
"""What is tried, and how."""


def verdicts(folder: Path, chosen: list[str], demo: str | None) -> Iterator[Verdict]:
    """Run everything; ``chosen`` are the names of clients, none for all."""
    if demo:
        with tempfile.TemporaryDirectory() as scratch:
            yield from sdks.demo_cases(folder, Path(scratch), demo)
        return
    for family in (PAGEABLE, HYBRID):
        for template in TEMPLATES:
            for name, run in CLIENTS.items():
                if chosen and name not in chosen:
                    continue
                # The SDKs' forms do not depend on the model: once is enough for them.
                if run in (sdks.python_cases, sdks.ai_sdk_cases) and (
                    (family, template) != (PAGEABLE, FIRST)
                ):
                    continue
                with tempfile.TemporaryDirectory() as scratch:
                    yield from run(folder, Path(scratch), family, template)


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the clients are installed")
    parser.add_argument(
        "--demo",
        nargs="?",
        const="demo",
        metavar="FOLDER",
        help="only what the demo model is asked; where it was imported to, if it was",
    )
    parser.add_argument("--client", action="append", default=[], choices=list(CLIENTS))
    options = parser.parse_args()
    failed = 0
    for verdict in verdicts(options.folder.absolute(), options.client, options.demo):
        failed += verdict.failed(TURN_SHARE)
        print(verdict.line(TURN_SHARE), flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
