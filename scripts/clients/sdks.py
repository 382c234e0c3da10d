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
_HERE = Path(__file__).parent


def python_cases(folder: Path, scratch: Path, family: str, template: str) -> Iterator[Verdict]:
    """The cases of ``python_cases.py``, run by the environment's own interpreter."""
    with ScriptedDaemon.running(scratch, family, template, _CALL) as daemon:
        yield from _python("python_cases.py", folder, f"{family}, {template}", daemon, scratch)


def ai_sdk_cases(folder: Path, scratch: Path, family: str, template: str) -> Iterator[Verdict]:
    """The cases of ``ai_sdk.mjs``, run by Node.js beside the packages."""
    with ScriptedDaemon.running(scratch, family, template, _CALL) as daemon:
        yield from _node("ai_sdk.mjs", folder, f"{family}, {template}", daemon, scratch)


def demo_cases(folder: Path, scratch: Path, model: str) -> Iterator[Verdict]:
    """Those that need a model whose answers make sense, with the demo model."""
    with ScriptedDaemon.serving(model, scratch) as daemon:
        yield from _python("demo_cases.py", folder, "demo", daemon, scratch)
        yield from _node("ai_sdk_demo.mjs", folder, "demo", daemon, scratch)


def _python(
    script: str, folder: Path, model: str, daemon: ScriptedDaemon, work: Path
) -> Iterator[Verdict]:
    python = folder / "py" / "bin" / "python"
    command = [str(python), str(_HERE / script)]
    yield from _run(command, python, model, daemon, work)


def _node(
    script: str, folder: Path, model: str, daemon: ScriptedDaemon, work: Path
) -> Iterator[Verdict]:
    package = folder / "npm" / "node_modules" / "ai"
    node = shutil.which("node")
    # Modules are looked for from where the script lies.
    place = folder / "npm" / "mlxceld_cases"
    if package.exists() and node is not None:
        place.mkdir(exist_ok=True)
        for source in _HERE.glob("*.mjs"):
            shutil.copy(source, place)
    try:
        yield from _run([node or "node", str(place / script)], package, model, daemon, work)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _run(
    command: Sequence[str], needed: Path, model: str, daemon: ScriptedDaemon, work: Path
) -> Iterator[Verdict]:
    if not needed.exists():
        yield Verdict(needed.name, "-", model, "all", "skipped")
        return
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
