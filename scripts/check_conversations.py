"""Hold two conversations with a model over HTTP and check what each turn computes again.

    python scripts/check_conversations.py --model MODEL

Starts a daemon of its own on ``MODEL`` (anything that ``mlxceld serve --model`` takes) with room
for two entries a conversation and one head, and interleaves two conversations of four turns. From
the second turn on a turn has to find all of the prompt before it but its generation prompt; at
every moment there may be one boundary and one completion entry a conversation; and nothing may be
pushed out for want of room. The exit code is 1 if anything of that does not hold. Meant for models
whose caches are not all pageable.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SYSTEM = "You are a patient teacher. Answer every question in one short sentence. " * 8
QUESTIONS = (
    "Why is the sky blue?",
    "And why is it red in the evening?",
    "Would it be so on the Moon?",
    "What was my first question?",
)
SESSIONS = ("one", "two")
COLUMNS = (
    *("turn", "talk", "prompt", "cached", "computed"),
    *("heads", "boundaries", "completions", "bytes"),
)
START_SECONDS = 3600
"""How long a model may take to be fetched and loaded."""


@dataclass
class Talk:
    """One conversation, and what its last prompt was."""

    session: str
    messages: list[dict[str, str]] = field(
        default_factory=lambda: [{"role": "system", "content": SYSTEM}]
    )
    prompt_tokens: int = 0


@dataclass
class Daemon:
    """What was found of the daemon that this started."""

    process: subprocess.Popen[bytes]
    address: str

    def call(self, route: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A GET, or a POST of ``body``."""
        request = urllib.request.Request(  # noqa: S310 - http on loopback
            f"{self.address}{route}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as response:  # noqa: S310 - as above
            answer: dict[str, Any] = json.load(response)
        return answer

    def settled_stats(self) -> dict[str, Any]:
        """The cache's counters once what was answered is stored, which comes after the answer."""
        before = self.call("/v1/cache/stats")
        while True:
            time.sleep(0.1)
            after = self.call("/v1/cache/stats")
            if after == before:
                return after
            before = after


def main() -> int:
    """Run the check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", required=True, help="a folder, a .gguf file or a hub id")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of an answer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        daemon = start(options.model, Path(state))
        try:
            faults = converse(daemon, options.max_tokens)
        finally:
            daemon.process.terminate()
            daemon.process.wait()
    for fault in faults:
        print(f"FAILED: {fault}", file=sys.stderr)
    print("failed" if faults else "passed")
    return 1 if faults else 0


def start(model: str, state: Path) -> Daemon:
    """A daemon on ``model`` that is ready."""
    log = state / "log"
    environ = {name: value for name, value in os.environ.items() if name[:7] != "MLXCEL_"}
    settings = state / "mlxceld.yaml"
    settings.write_text("# Defaults but for the flags.\n")
    command = [sys.executable, "-m", "mlxceld", "serve", "--config", str(settings)]
    command += ["--model", model, "--port", "0", "--state-dir", str(state / "state")]
    command += ["--prompt-cache-prefetch", "off"]
    command += ["--prompt-cache-snapshot-max-entries", str(2 * len(SESSIONS) + 1)]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=environ, stderr=stream)  # noqa: S603 - our own
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        text = log.read_text()
        if " serving " in text or '"serving' in text:
            found = re.search(r"http://[^\s,\"]+", text)
            if found is not None:
                return Daemon(process, found.group())
        time.sleep(0.2)
    process.kill()
    print(log.read_text(), file=sys.stderr)
    raise SystemExit("the daemon did not get ready")


def converse(daemon: Daemon, max_tokens: int) -> list[str]:
    """Interleave the conversations, print a line a turn, and return what did not hold."""
    talks = [Talk(session) for session in SESSIONS]
    faults: list[str] = []
    found: list[tuple[str, int]] = []
    superseded = 0
    row = "{:>5} {:>5} {:>7} {:>7} {:>9} {:>6} {:>11} {:>11} {:>9}"
    print(row.format(*COLUMNS))
    for number, question in enumerate(QUESTIONS):
        for talk in talks:
            usage = turn(daemon, talk, question, max_tokens)
            prompt = usage["prompt_tokens"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            stats = daemon.settled_stats()
            counts = [stats[f"snapshot_entries_{o}"] for o in ("head", "boundary", "completion")]
            print(
                row.format(
                    number + 1,
                    talk.session,
                    prompt,
                    cached,
                    prompt - cached,
                    *counts,
                    stats["snapshot_bytes"],
                )
            )
            where = f"turn {number + 1} of {talk.session}"
            if number:
                found.append((where, talk.prompt_tokens - cached))
            if max(counts[1:]) > len(SESSIONS):
                faults.append(f"{where}: more than one entry of a kind a conversation: {counts}")
            if stats["snapshot_evictions_lru"]:
                faults.append(f"{where}: {stats['snapshot_evictions_lru']} entries pushed out")
            if number and stats["snapshot_supersedes"] <= superseded:
                faults.append(f"{where}: nothing was superseded")
            superseded = stats["snapshot_supersedes"]
            talk.prompt_tokens = prompt
    print(f"superseded {superseded}, hits {stats['snapshot_hits']}", end="; ")
    # Last, since it leaves entries of its own behind.
    generation = generation_prompt(daemon)
    faults += [
        f"{where}: {missing - generation} tokens of the prompt before were not found"
        for where, missing in found
        if missing > generation
    ]
    return faults


def turn(daemon: Daemon, talk: Talk, question: str, max_tokens: int) -> dict[str, Any]:
    """Ask, take the answer into the conversation, and return the usage."""
    talk.messages.append({"role": "user", "content": question})
    answer = daemon.call(
        "/v1/chat/completions",
        {
            "messages": talk.messages,
            "prompt_cache_key": talk.session,
            "temperature": 0,
            "max_tokens": max_tokens,
        },
    )
    text = answer["choices"][0]["message"]["content"] or ""
    talk.messages.append({"role": "assistant", "content": text})
    usage: dict[str, Any] = answer["usage"]
    return usage


def generation_prompt(daemon: Daemon) -> int:
    """How many tokens the template puts between the history and the answer."""
    counts = []
    for wanted in (True, False):
        answer = daemon.call(
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "x"}],
                "add_generation_prompt": wanted,
                "max_tokens": 1,
            },
        )
        counts.append(int(answer["usage"]["prompt_tokens"]))
    return counts[0] - counts[1]


if __name__ == "__main__":
    sys.exit(main())
