"""Measures what one client's load does to the others, against a daemon that it starts.

Beside a running stream each load comes from another client, one after the other: a text of 30 MB,
a conversation whose template loops, one of a million messages, a schema of 5,000 properties.
Meanwhile short chats, ``/livez`` and the admin API's status are timed. Prints a table of ratios to
what was measured without load, and ends with 1 where a limit is passed. Loopback only; ends by
itself.

    python scripts/check_isolation.py --model demo [--rounds 2]
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

START_SECONDS = 900
LOAD_SECONDS = 60
QUIET_SECONDS = 12
SETTLE_SECONDS = 5
PAUSE_SECONDS = 0.05

LOOP_WORD = "LOOP-NOW"
_LOOP = (
    "{%- if messages[-1]['content'] == '" + LOOP_WORD + "' %}"
    "{%- for a in range(100000) %}{%- for b in range(100000) %}{%- endfor %}{%- endfor %}"
    "{%- endif %}"
)


@dataclass
class Figures:
    """What was measured in one phase, in seconds."""

    gaps: list[float] = field(default_factory=list)
    livez: list[float] = field(default_factory=list)
    status: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)


class Daemon:
    """A daemon of its own, with a state folder of its own."""

    def __init__(self, model: str, folder: Path, *flags: str) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("MLXCEL_", "APC_"))}
        settings = folder / "settings.yaml"
        settings.write_text("# defaults\n")
        self._state = folder / "state"
        self.log = folder / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        command = [sys.executable, "-m", "mlxceld", "serve", "--model", model]
        command += ["--port", str(self.port), "--config", str(settings)]
        command += ["--state-dir", str(self._state), *flags]
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(  # noqa: S603 - our own program
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environ
            )

    def wait_until_ready(self) -> None:
        """Raises RuntimeError, with the end of its log, if it does not come to that."""
        limit = time.monotonic() + START_SECONDS
        while time.monotonic() < limit and self.process.poll() is None:
            try:
                if self.request("GET", "/readyz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.2)
        raise RuntimeError(f"the daemon did not start:\n{self.log.read_text()[-2000:]}")

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LOAD_SECONDS)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def status(self) -> Any:
        """The admin API's status, as ``mlxctl status`` asks for it."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(LOAD_SECONDS)
            admin.connect(str(self._state / "admin.sock"))
            admin.sendall(
                b"GET /admin/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            )
            answer = http.client.HTTPResponse(admin)
            answer.begin()
            return json.loads(answer.read())

    def resident_bytes(self) -> int:
        """Its resident memory."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the system tells no resident memory")

    def stop(self) -> None:
        """SIGTERM, then harder."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def events(port: int, body: Any) -> Iterator[float]:
    """The times at which the chunks of a chat stream come that have text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LOAD_SECONDS)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}))
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"a stream was refused: {answer.status} {answer.read()[:300]!r}")
        for line in answer:
            if line.startswith(b"data: {") and b'"content": ""' not in line:
                yield time.perf_counter()
    finally:
        connection.close()


def chat(text: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    """The body of a chat that has one turn, and an answer of so many tokens."""
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        **more,
    }


def measure(daemon: Daemon, during: Callable[[], object]) -> Figures:
    """Time everything while ``during`` runs, beside one stream that runs on."""
    figures = Figures()
    over = threading.Event()
    number = iter(range(1_000_000))

    def keep(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            while not over.is_set():
                work()
                time.sleep(PAUSE_SECONDS)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def stream() -> None:
        last = None
        try:
            for at in events(daemon.port, chat(f"Tell a long story, number {next(number)}.", 2000)):
                if last is not None:
                    figures.gaps.append(at - last)
                last = at
                if over.is_set():
                    return
        except OSError:
            # It stood still for longer than anyone waits.
            figures.gaps.append(LOAD_SECONDS)

    def timed(to: list[float], work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            begun = time.perf_counter()
            with contextlib.suppress(OSError):
                work()
            to.append(time.perf_counter() - begun)

        return run

    def short() -> None:
        next(events(daemon.port, chat(f"Say {next(number)}.", 2)), None)

    threads = [
        keep(stream),
        keep(timed(figures.first_tokens, short)),
        keep(timed(figures.livez, lambda: daemon.request("GET", "/livez"))),
        keep(timed(figures.status, daemon.status)),
    ]
    during()
    over.set()
    for thread in threads:
        thread.join(LOAD_SECONDS)
    return figures


def post(port: int, path: str, body: bytes, answers: Any) -> None:
    """One load, in a process of its own so that writing it costs the measuring nothing."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LOAD_SECONDS)
    begun = time.perf_counter()
    try:
        connection.request("POST", path, body)
        answer = connection.getresponse()
        said = answer.read(200).decode("utf-8", "replace")
        answers.put((answer.status, said, time.perf_counter() - begun))
    except OSError as error:
        answers.put((0, repr(error), time.perf_counter() - begun))
    finally:
        connection.close()


def loads() -> dict[str, tuple[str, bytes]]:
    """Each load's route and body."""
    schema = {
        "type": "object",
        "properties": {f"property_{i}": {"type": "string"} for i in range(5000)},
    }
    structured = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    huge = {"messages": [{"role": "user", "content": "hi"}] * 1_000_000}
    path = "/v1/chat/completions"
    made = {
        "one text of 30 MB": (path, chat("hello world " * 2_500_000, 8)),
        "30 MB to /tokenize": ("/tokenize", {"content": "hello world " * 2_500_000}),
        "a template that loops": (path, chat(LOOP_WORD, 8)),
        "1,000,000 messages": (path, huge),
        "a schema of 5,000 properties": (path, chat("hi", 64, response_format=structured)),
    }
    return {
        name: (route, json.dumps(body, separators=(",", ":")).encode())
        for name, (route, body) in made.items()
    }


def looping_model(model: Path, folder: Path) -> Path:
    """A copy of a model's folder, by links, whose template loops at one word."""
    folder.mkdir()
    for file in model.iterdir():
        if file.name not in ("tokenizer_config.json", "chat_template.jinja"):
            (folder / file.name).symlink_to(file.resolve())
    settings = json.loads((model / "tokenizer_config.json").read_text())
    separate = model / "chat_template.jinja"
    template = separate.read_text() if separate.is_file() else settings["chat_template"]
    settings["chat_template"] = _LOOP + template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def milliseconds(values: list[float]) -> str:
    """The median and the longest of some times."""
    if not values:
        return "-"
    return f"{1e3 * statistics.median(values):.0f}/{1e3 * max(values):.0f}"


def report(quiet: Figures, found: Figures) -> tuple[str, bool]:
    """One row of the table, and whether it is within the limits."""
    gap = max(found.gaps, default=math.inf) / max(quiet.gaps)
    first = max(found.first_tokens, default=math.inf) / max(quiet.first_tokens)
    livez = max(found.livez, default=math.inf)
    status = max(found.status, default=math.inf)
    good = gap <= 2 and first <= 2 and livez <= 0.1 and status <= 0.3
    row = (
        f"{gap:6.2f} {milliseconds(found.gaps):>11} {first:6.2f}"
        f" {milliseconds(found.first_tokens):>11} {milliseconds(found.livez):>9}"
        f" {milliseconds(found.status):>9}"
    )
    return row, good


def run(daemon: Daemon, rounds: int) -> bool:
    """Measure all phases and print the table; whether every limit held."""
    measure(daemon, lambda: time.sleep(QUIET_SECONDS / 3))
    quiet = measure(daemon, lambda: time.sleep(QUIET_SECONDS))
    before = daemon.resident_bytes()
    print(
        f"{'':30} {'gap x':>6} {'ms mid/max':>11} {'ttft x':>6} {'ms':>11} {'livez':>9}"
        f" {'status':>9}"
    )
    print(f"{'nothing beside it':30} {report(quiet, quiet)[0]}")
    well = True
    spawn = multiprocessing.get_context("spawn")
    for name, (route, body) in loads().items():
        found, said = Figures(), (0, "", 0.0)
        for _ in range(rounds):
            answers: Any = spawn.Queue()
            process = spawn.Process(target=post, args=(daemon.port, route, body, answers))
            # What the process needs to begin is no part of the load.
            process.start()

            def during(answers: Any = answers) -> None:
                nonlocal said
                said = answers.get(timeout=2 * LOAD_SECONDS)
                time.sleep(1)

            part = measure(daemon, during)
            process.join()
            found.gaps += part.gaps
            found.livez += part.livez
            found.status += part.status
            found.first_tokens += part.first_tokens
        row, good = report(quiet, found)
        well = well and good
        print(f"{name:30} {row}  {'' if good else 'TOO MUCH'}")
        print(f"{'':30} answered {said[0]} after {said[2]:.1f} s: {said[1][:90]}", flush=True)
    time.sleep(SETTLE_SECONDS)
    after = daemon.resident_bytes()
    growth = after / before
    print(
        f"resident memory {before / 2**20:.0f} MiB before, {after / 2**20:.0f} MiB after,"
        f" x {growth:.2f}"
    )
    return well and growth <= 1.1


def main() -> int:
    """Start a daemon, measure, end it; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="an imported model's folder")
    parser.add_argument("--rounds", type=int, default=1, help="how often each load comes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="isolation-") as name:
        folder = Path(name)
        model = looping_model(Path(given.model), folder / "model")
        daemon = Daemon(str(model), folder)
        try:
            daemon.wait_until_ready()
            well = run(daemon, given.rounds)
        finally:
            daemon.stop()
    print("within the limits" if well else "a limit was passed")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
