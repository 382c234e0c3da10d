"""A daemon whose standard error is never read serves and stops all the same."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from daemon_harness import PATIENCE_SECONDS, PROGRAM, clean_environ, get
from tiny_models import TinyModels


def test_nobody_reads_standard_error(tiny_models: TinyModels, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        # As small as it can be, so that a few lines fill it.
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    state = tmp_path / "state"
    arguments = ["--port", "0", "--log-format", "json", "--apc-trace", "--state-dir", str(state)]
    process = subprocess.Popen(
        [*PROGRAM, "serve", *arguments, "--model", str(tiny_models.folder("llama"))],
        stdin=subprocess.DEVNULL,
        stderr=writing,
        env=clean_environ(tmp_path),
    )
    os.close(writing)
    try:
        waited = subprocess.run(
            [
                *(sys.executable, "-m", "mlxctl", "--socket", str(state / "admin.sock")),
                *("-o", "json", "wait", "--for", "ready", "--timeout", f"{PATIENCE_SECONDS}s"),
            ],
            capture_output=True,
            text=True,
            check=True,
            env=clean_environ(tmp_path),
        )
        status = json.loads(waited.stdout)
        url = f"http://{status['host']}:{status['port']}"
        for number in range(30):  # two lines each, of 200 bytes and more
            body = {"prompt": f"{number} of a prompt that is long enough to keep", "max_tokens": 1}
            request = urllib.request.Request(
                f"{url}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
                assert response.status == 200
        assert get(f"{url}/v1/cache/stats")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reading)
