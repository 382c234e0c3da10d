"""Coding agents: two turns of a conversation, and a loop with a tool."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripted_daemon import PLAIN_ANSWER, ScriptedDaemon
from verdict import Verdict

_SECONDS = 240

CONTEXT = 131_072
_MADE = "made-by-tool"
_COMMAND = f"touch {_MADE}"
"""What the model has its tool run: a loop is seen to work by the file."""


_TURNS = (
    ("first turn", "Say hello"),
    ("second turn", "And again"),
    ("tool loop", "Now use the tool"),
)


def claude_code(folder: Path, scratch: Path, family: str, template: str) -> Iterator[Verdict]:
    """Claude Code with ``-p`` and ``--continue``."""
    call = {"name": "Bash", "arguments": {"command": _COMMAND, "description": "Make it"}}

    def words(daemon: ScriptedDaemon, text: str, *, first: bool) -> list[str]:
        more = [] if first else ["--continue"]
        return ["-p", text, *more, "--allowedTools", "Bash"]

    def environ(daemon: ScriptedDaemon) -> dict[str, str]:
        return {
            "ANTHROPIC_BASE_URL": daemon.url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    yield from _Agent("Claude Code", folder / "npm/node_modules/.bin/claude", words, environ).run(
        scratch, family, template, call
    )


def codex(folder: Path, scratch: Path, family: str, template: str) -> Iterator[Verdict]:
    """Codex with ``exec``, its default tools, and ``resume --last``."""
    call = {"name": "exec_command", "arguments": {"cmd": _COMMAND}}

    def words(daemon: ScriptedDaemon, text: str, *, first: bool) -> list[str]:
        more = [] if first else ["resume", "--last"]
        free = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        return ["exec", *more, *free, text]

    def environ(daemon: ScriptedDaemon) -> dict[str, str]:
        home = scratch / "home" / ".codex"
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            'model = "any"\nmodel_provider = "mlxceld"\n'
            f"model_context_window = {CONTEXT}\n\n"
            '[model_providers.mlxceld]\nname = "mlxceld"\n'
            f'base_url = "{daemon.url}/v1"\nwire_api = "responses"\n'
        )
        return {"CODEX_HOME": str(home)}

    yield from _Agent("Codex", folder / "npm/node_modules/.bin/codex", words, environ).run(
        scratch, family, template, call
    )


def opencode(folder: Path, scratch: Path, family: str, template: str) -> Iterator[Verdict]:
    """OpenCode with ``run`` and ``--continue``."""
    call = {"name": "bash", "arguments": {"command": _COMMAND, "description": "Make it"}}

    def words(daemon: ScriptedDaemon, text: str, *, first: bool) -> list[str]:
        more = [] if first else ["--continue"]
        # A text with spaces in one argument would reach the model in quotes.
        return ["run", *more, "--model", "mlxceld/any", *text.split()]

    def environ(daemon: ScriptedDaemon) -> dict[str, str]:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "mlxceld",
            "options": {"baseURL": f"{daemon.url}/v1", "apiKey": "none"},
            "models": {"any": {"name": "any", "limit": {"context": CONTEXT, "output": 8192}}},
        }
        settings = {"share": "disabled", "autoupdate": False, "provider": {"mlxceld": provider}}
        (scratch / "work" / "opencode.json").write_text(json.dumps(settings))
        return {"OPENCODE_DISABLE_AUTOUPDATE": "1"}

    yield from _Agent("OpenCode", folder / "npm/node_modules/.bin/opencode", words, environ).run(
        scratch, family, template, call
    )


class _Agent:
    def __init__(self, name: str, program: Path, words: Any, environ: Any) -> None:
        self._name = name
        self._program = program
        self._words = words
        self._environ = environ

    def run(
        self, scratch: Path, family: str, template: str, call: Mapping[str, Any]
    ) -> Iterator[Verdict]:
        """Two turns and one that calls the tool."""
        model = f"{family}, {template}"
        if not self._program.exists():
            yield Verdict(self._name, "-", model, "all", "skipped")
            return
        (scratch / "work").mkdir()
        home = {"HOME": str(scratch / "home"), "PATH": os.environ["PATH"]}
        (scratch / "home").mkdir(exist_ok=True)
        version = self._call(scratch, ["--version"], home)[1].split("\n")[0].strip()
        version = next((word for word in version.split() if word[0].isdigit()), version)
        with ScriptedDaemon.running(scratch, family, template, call) as daemon:
            environ = {**home, **self._environ(daemon)}
            for case, text in _TURNS:
                first = (case, text) == _TURNS[0]
                before = daemon.counts()
                words = self._words(daemon, text, first=first)
                code, said = self._call(scratch, words, environ)
                after = daemon.counts()
                outcome = "ok"
                if code or PLAIN_ANSWER not in said:
                    outcome = f"code {code}: {said[-400:]!r}"
                elif (scratch / "work" / _MADE).exists() != (case == "tool loop"):
                    outcome = f"the tool ran where it should not, or did not: {said[-400:]!r}"
                share = None
                if not first and after[0] > before[0]:
                    share = (after[1] - before[1]) / (after[0] - before[0])
                yield Verdict(self._name, version, model, case, outcome, share)

    def _call(
        self, scratch: Path, words: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[int, str]:
        try:
            done = subprocess.run(
                [str(self._program), *words],
                cwd=scratch / "work",
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            return -1, f"no end within {_SECONDS} s; it said {late.stdout!r}"
        return done.returncode, done.stdout + done.stderr
