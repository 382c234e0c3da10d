"""What goes wrong around a daemon process: connections, files, folders, streams."""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from daemon_harness import PATIENCE_SECONDS, PROGRAM, Served, clean_environ, get, run_to_end
from tiny_models import TinyModels

HALF_A_REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
)


@pytest.fixture(scope="module")
def model(tiny_models: TinyModels) -> Path:
    return tiny_models.folder("llama")


@pytest.fixture
def serve(tmp_path: Path, model: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*arguments: str) -> Served:
        state = str(tmp_path / "state")
        started.append(Served(tmp_path, "--state-dir", state, "--model", str(model), *arguments))
        return started[-1]

    yield start
    for each in started:
        each.end()


@contextlib.contextmanager
def connections(url: str, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections on which so much was sent and no more will be."""
    place = urlsplit(url)
    assert place.hostname is not None
    with contextlib.ExitStack() as held:
        found = []
        for _ in range(count):
            one = socket.create_connection((place.hostname, place.port or 0), PATIENCE_SECONDS)
            held.enter_context(one)
            one.sendall(sent)
            found.append(one)
        yield found


def test_half_sent_requests_do_not_hold_up_a_stop(serve: Callable[..., Served]) -> None:
    served = serve("--drain-timeout", "1000s")
    url = served.until_ready()
    with connections(url, 40, HALF_A_REQUEST):
        # Its answer comes after the daemon has read the others' headers.
        assert get(f"{url}/livez")[0] == 200
        assert served.stop() == 0
    served.wait_for("finishing 0 requests")


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
@pytest.mark.parametrize("sent", [b"", b"GET / HT", HALF_A_REQUEST], ids=["", "header", "body"])
def test_silent_connections_leave_files_for_others(
    serve: Callable[..., Served], sent: bytes, tmp_path: Path
) -> None:
    served = serve()
    url = served.until_ready()
    resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (64, 64))
    with connections(url, 80, sent):
        assert get(f"{url}/livez") == (200, {"status": "alive"})
        answer = admin_status(tmp_path / "state" / "admin.sock")
        assert answer.startswith(b"HTTP/1.1 200")
    assert served.stop() == 0
    assert not [line for line in served.lines if "Too many open files" in line["message"]]


def admin_status(path: Path) -> bytes:
    """What the admin API answers."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_SECONDS)
        client.connect(str(path))
        client.sendall(
            b"GET /admin/v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        return client.recv(65536)


@pytest.mark.parametrize("command", [("serve",), ("start", "--detach")])
@pytest.mark.parametrize("name", ["mlxceld.pid", "mlxceld.log", "last-failure.json"])
def test_a_link_in_an_open_state_folder_harms_nobody(
    tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    state, victim = tmp_path / "state", tmp_path / "victim"
    state.mkdir()
    state.chmod(0o777)
    victim.write_text("precious")
    victim.chmod(0o644)
    (state / name).symlink_to(victim)
    arguments = [*command, "--port", "0", "--model", "demo", "--state-dir", str(state)]
    done = run_to_end(*arguments, home=tmp_path)
    assert done.returncode == 78
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert line == (
        f"mlxceld: state_dir {state}: may be written in by others (mode 0777): chmod it to 0700"
    )
    assert victim.read_text() == "precious"
    assert victim.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("name", "command"),
    [("mlxceld.pid", ("serve",)), ("mlxceld.log", ("start", "--detach"))],
)
def test_a_link_in_a_folder_of_ones_own_is_not_followed(
    tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    state, victim = tmp_path / "state", tmp_path / "victim"
    state.mkdir(mode=0o700)
    victim.write_text("precious")
    (state / name).symlink_to(victim)
    arguments = [*command, "--port", "0", "--model", "demo", "--state-dir", str(state)]
    done = run_to_end(*arguments, home=tmp_path)
    assert done.returncode == 78
    assert f"{name} is a symbolic link, which is not followed" in done.stderr
    assert "Traceback" not in done.stderr
    assert victim.read_text() == "precious"


def test_a_daemon_without_streams_from_a_folder_that_is_gone(tmp_path: Path, model: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    state = str(tmp_path / "state")
    program = shlex.join([*PROGRAM, "start", "--detach", "--port", "0"])
    settings = shlex.join(["--model", str(model), "--state-dir", state])
    script = f"cd {shlex.quote(str(gone))} && rmdir ../gone && {program} {settings} <&- 2>&-"
    environ = clean_environ(tmp_path, PYTHONPATH=os.pathsep.join(sys.path))
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", script],
            check=False,
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_SECONDS,
            env=environ,
        )
        assert done.stdout.startswith("mlxceld serves at http://")
        url = done.stdout.split()[3]
        assert get(f"{url}/readyz") == (200, {"status": "ready"})
    finally:
        stopped = run_to_end("stop", "--state-dir", state, home=tmp_path)
    assert stopped.returncode == 0
    assert "Traceback" not in (tmp_path / "state" / "mlxceld.log").read_text()
