"""SDKs and frameworks: every form of a request that they have."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from scripted_daemon import ScriptedDaemon
from verdict import Verdict

_CALL = {"name": "get_weather", "arguments": {"city": "Paris"}}
_SECONDS = 400


def python_cases(folder: Path, scratch: Path, family: str, template: str) -> Iterator[Verdict]:
    """The cases of ``python_cases.py``, run by the environment's own interpreter."""
    python = folder / "py" / "bin" / "python"
    script = Path(__file__).with_name("python_cases.py")
    yield from _run([str(python), str(script)], python, scratch, family, template, scratch)


def ai_sdk_cases(folder: Path, scratch: Path, family: str, template: str) -> Iterator[Verdict]:
    """The cases of ``ai_sdk.mjs``, run by Node.js beside the packages."""
    package = folder / "npm" / "node_modules" / "ai"
    node = shutil.which("node")
    script = folder / "npm" / "mlxceld_ai_sdk.mjs"
    if package.exists() and node is not None:
        # Modules are looked for from where the script lies.
        script.write_text(Path(__file__).with_name("ai_sdk.mjs").read_text())
    try:
        yield from _run([node or "node", str(script)], package, scratch, family, template, scratch)
    finally:
        script.unlink(missing_ok=True)


def _run(
    command: Sequence[str], needed: Path, scratch: Path, family: str, template: str, work: Path
) -> Iterator[Verdict]:
    model = f"{family}, {template}"
    if not needed.exists():
        yield Verdict(needed.name, "-", model, "all", "skipped")
        return
    with ScriptedDaemon.running(scratch, family, template, _CALL) as daemon:
        try:
            done = subprocess.run(
                [*command, daemon.url],
                cwd=work,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            yield Verdict(needed.name, "-", model, "all", f"no end within {late.timeout} s")
            return
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    for line in lines:
        told = json.loads(line)
        yield Verdict(told["client"], told["version"], model, told["case"], told["outcome"])
    if done.returncode or not lines:
        yield Verdict(
            needed.name, "-", model, "all", f"code {done.returncode}: {done.stderr[-300:]}"
        )
