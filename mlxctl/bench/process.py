"""Server processes: started with an environment of their own, and stopped whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mlxctl.bench import servers
from mlxctl.bench.plan import ServerSpec

_LOG_LINES = 20
_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.1

_FOREIGN = ("MLXCEL_", "MLXCTL_", "APC_", "NOTIFY_", "WATCHDOG_", "INVOCATION_ID", "STATE_DIR")
"""What in the user's environment would give a server settings or a manager."""


class ServerFailure(Exception):  # noqa: N818 - what happened to a server, not to this program
    """A server did not start, died or did not answer; ``log`` is the end of what it printed."""

    def __init__(self, what: str, log: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.log = log


@dataclass
class Server:
    """A server that answers. ``pid`` is None where it is not ours to look into."""

    spec: ServerSpec
    url: str
    model: str
    pid: int | None = None
    process: subprocess.Popen[bytes] | None = None
    log_file: Path | None = None

    def log_end(self) -> str:
        """The last lines that it printed."""
        if self.log_file is None:
            return ""
        lines = self.log_file.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])

    def check(self) -> None:
        """Raises ServerFailure if its process has ended."""
        code = self.process.poll() if self.process else None
        if code is not None:
            raise ServerFailure(f"the server ended with code {code}", self.log_end())


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server: nothing of the user's settings, and no model hub."""
    kept = {key: value for key, value in environ.items() if not key.startswith(_FOREIGN)}
    return {**kept, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


@contextmanager
def serving(spec: ServerSpec, *, model: str | None, timeout: float) -> Iterator[Server]:
    """A fresh server that is ready, stopped at the end; one that runs already is left alone.

    ``timeout`` is how many seconds it may take to get ready. Raises ServerFailure.
    """
    if spec.kind == "url":
        assert spec.url is not None
        _until_ready(Server(spec, spec.url, ""), timeout)
        yield Server(spec, spec.url, _first_model(spec.url))
        return
    assert model is not None
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="mlxctl-bench-") as work:
        folder = Path(work)
        log_file = folder / "log"
        with log_file.open("wb") as sink:
            try:
                process = subprocess.Popen(  # noqa: S603 - the program was named to be run
                    servers.command(spec, model=model, port=port, folder=folder),
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    env=clean_environ(os.environ),
                    # Ctrl-C is for this program, which then stops the server in good order.
                    start_new_session=True,
                )
            except OSError as error:
                raise ServerFailure(f"the server cannot be started: {error}") from None
        server = Server(
            spec, f"http://127.0.0.1:{port}", "default_model", process.pid, process, log_file
        )
        try:
            _until_ready(server, timeout)
            if spec.kind == "command":
                server.model = _first_model(server.url)
            yield server
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes], patience: float = _STOP_SECONDS) -> None:
    """End a server and all that it started; one that does not listen is killed."""
    try:
        if process.poll() is None:
            process.terminate()
            process.wait(patience)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also where a second Ctrl-C came in between.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _until_ready(server: Server, timeout: float) -> None:
    import requests

    url = server.url + servers.ready_route(server.spec)
    deadline = time.monotonic() + timeout
    said = "it does not answer"
    while True:
        server.check()
        try:
            response = requests.get(url, timeout=5)
            if response.status_code == 200:
                return
            said = f"GET {url} says {response.status_code}"
        except requests.RequestException as error:
            said = f"GET {url}: {type(error).__name__}"
        if time.monotonic() >= deadline:
            raise ServerFailure(f"not ready after {timeout:g} s: {said}", server.log_end())
        time.sleep(_POLL_SECONDS)


def _first_model(url: str) -> str:
    """The first model that a server names; its word for any where it names none."""
    import requests

    try:
        models = requests.get(f"{url}/v1/models", timeout=30).json()["data"]
        return str(models[0]["id"]) if models else "default_model"
    except (requests.RequestException, ValueError, LookupError, TypeError):
        return "default_model"


def _free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
