"""Real daemons as processes, on tiny models."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-m", "mlxceld"]

PATIENCE_SECONDS = 120
"""After this a test fails instead of waiting for ever; none waits for it to pass."""


def clean_environ(home: Path, **more: str) -> dict[str, str]:
    """This environment without what would give a daemon settings or a manager."""
    foreign = ("MLXCEL_", "APC_", "XDG_", "NOTIFY_", "WATCHDOG_", "INVOCATION_", "STATE_DIR")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return {**environ, "HOME": str(home), "HF_HUB_OFFLINE": "1", **more}


def run_to_end(*arguments: str, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=clean_environ(home, **environ),
    )


class Served:
    """A ``mlxceld serve`` process whose log can be waited on, line by line."""

    def __init__(self, home: Path, *arguments: str, **environ: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [*PROGRAM, "serve", "--port", "0", "--log-format", "json", *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environ(home, **environ),
        )
        self._more = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, said: str) -> dict[str, Any]:
        """The first log line whose message has ``said`` in it, as soon as it is there."""

        def found() -> dict[str, Any] | None:
            return next((line for line in self.lines if said in line["message"]), None)

        with self._more:
            self._more.wait_for(lambda: found() or self._ended, PATIENCE_SECONDS)
            line = found()
        assert line is not None, f"{said!r} was never logged; the log: {self.lines}"
        return line

    def until_ready(self) -> str:
        """Wait for the model and return the daemon's address."""
        return str(self.wait_for("serving")["address"])

    def until_listening(self) -> str:
        """Wait for the sockets and return the daemon's address."""
        return str(self.wait_for("listens at")["message"].split(" at ")[1].split(",")[0])

    def send(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.send(number)
        return self.wait()

    def wait(self) -> int:
        """The exit code, with every line read."""
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return code

    def end(self) -> None:
        """Leave nothing behind, however the test went."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for text in stream:
                line = {"message": text.rstrip("\n")}
                if text.startswith("{"):
                    line = json.loads(text)
                with self._more:
                    self.lines.append(line)
                    self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()


class Manager:
    """The socket of a service manager, and what was told to it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.bind("")  # the kernel picks an abstract name
        self.told: list[dict[str, str]] = []

    @property
    def environ(self) -> dict[str, str]:
        """What the manager gives its service."""
        return {"NOTIFY_SOCKET": "@" + self._socket.getsockname()[1:].decode()}

    def hear(self, wanted: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """The next word that is ``wanted``."""
        while True:
            text = self._socket.recv(65536).decode()
            word = dict(line.split("=", 1) for line in text.split("\n"))
            self.told.append(word)
            if wanted(word):
                return word

    def close(self) -> None:
        """Hear no more."""
        self._socket.close()


class HeldModel:
    """A model folder whose load waits, at its config, until :meth:`release`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._config = folder / "config.json"
        self._kept = self._config.read_bytes()
        self._config.unlink()
        os.mkfifo(self._config)

    def release(self, served: Served) -> None:
        """Let the load go on; returns when it has come to the config."""

        def read_in_its_place() -> None:
            served.process.wait()
            os.close(os.open(self._config, os.O_RDONLY | os.O_NONBLOCK))

        # Opening to write waits for a reader; a daemon that has died will not be one.
        threading.Thread(target=read_in_its_place, daemon=True).start()
        with self._config.open("wb") as pipe:
            # Whoever reads again finds a file.
            self._config.unlink()
            self._config.write_bytes(self._kept)
            pipe.write(self._kept)


def get(url: str) -> tuple[int, Any]:
    """Status and JSON of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def stream(url: str, *, max_tokens: int) -> Iterator[str]:
    """The data lines of a streamed completion, as they come; the first proves that it runs."""
    request = urllib.request.Request(
        f"{url}/v1/completions",
        data=json.dumps(
            {"prompt": "hello", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        ).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
        for line in response:
            if line.startswith(b"data: "):
                yield line[6:].decode().strip()
