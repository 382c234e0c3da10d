"""A daemon with a scripted model, on a free port, with a state folder of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripted_model import write_scripted_model

PLAIN_ANSWER = "Done, and well."

_TEMPLATES = Path(__file__).parents[2] / "tests" / "case_templates"
TEMPLATES = {"chatml": _TEMPLATES / "hermes.jinja", "strict": _TEMPLATES / "strict.jinja"}
"""Chat templates by name: ChatML with Hermes' calls, and one that wants roles to alternate."""


class ScriptedDaemon:
    """Answers ``PLAIN_ANSWER``, or calls a tool where a turn ends with the word "tool"."""

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    @contextlib.contextmanager
    def running(
        cls, scratch: Path, family: str, template: str, call: Mapping[str, Any]
    ) -> Iterator[ScriptedDaemon]:
        """Start it over a model of ``family`` whose tool call is ``call``, and stop it."""
        written = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        model = write_scripted_model(
            scratch / "model",
            {"": PLAIN_ANSWER, " tool": written},
            family=family,
            chat_template=TEMPLATES[template].read_text(),
        )
        with cls.serving(str(model), scratch) as daemon:
            yield daemon

    @classmethod
    @contextlib.contextmanager
    def serving(cls, model: str, scratch: Path) -> Iterator[ScriptedDaemon]:
        """Start it over any model, and stop it."""
        command = [sys.executable, "-m", "mlxceld", "start", "--detach", "--port", "0"]
        command += ["--model", model, "--state-dir", str(scratch / "state")]
        command += ["--prompt-cache-prefetch", "off"]
        started = subprocess.run(command, check=True, capture_output=True, text=True)
        try:
            yield cls(started.stdout.split(" at ")[1].split(" ")[0])
        finally:
            stop = [sys.executable, "-m", "mlxceld", "stop", "--state-dir", str(scratch / "state")]
            subprocess.run([*stop, "--force"], check=False, capture_output=True)

    def counts(self) -> tuple[int, int]:
        """The tokens of all prompts so far, and how many of them came from the cache."""
        with urllib.request.urlopen(f"{self.url}/v1/cache/stats", timeout=30) as response:
            stats = json.load(response)
        return stats["prompt_tokens"], stats["prompt_tokens_reused"]
