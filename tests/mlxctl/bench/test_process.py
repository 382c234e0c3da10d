"""Server processes are started, waited for, and ended with all that they started."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from mlxctl.bench.plan import ServerSpec
from mlxctl.bench.process import ServerFailure, serving, stop

READY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[2]))
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "their-name"}]}')
print("here I am", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
child.wait()
"""


def spec(code: str, *arguments: str) -> ServerSpec:
    words = (sys.executable, "-c", code, "{port}", *arguments, "{model}")
    return ServerSpec("theirs", "command", words)


def test_a_server_is_there_while_it_is_needed_and_gone_after():
    with serving(spec(READY, "200"), model="/m", timeout=60) as server:
        assert server.model == "their-name"
        assert server.pid is not None
        assert psutil.pid_exists(server.pid)
        server.check()
    assert not psutil.pid_exists(server.pid)


def test_one_that_ends_early_is_told_with_the_end_of_its_log():
    early = spec("print('\\n'.join(map(str, range(50)))); raise SystemExit(3)")
    with (
        pytest.raises(ServerFailure, match="the server ended with code 3") as failure,
        serving(early, model="/m", timeout=60),
    ):
        pass
    assert failure.value.log.split("\n") == [str(number) for number in range(30, 50)]


def test_one_that_does_not_get_ready_is_given_up():
    with (
        pytest.raises(ServerFailure, match=r"not ready after 0 s: GET .*/v1/models"),
        serving(spec(READY, "503"), model="/m", timeout=0),
    ):
        pass


def test_a_program_that_is_not_there():
    gone = ServerSpec("x", "command", ("/nowhere/x", "{model}", "{port}"))
    with (
        pytest.raises(ServerFailure, match="cannot be started"),
        serving(gone, model="/m", timeout=1),
    ):
        pass


def test_one_that_does_not_listen_is_killed_with_its_children():
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True
    )
    with process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        stop(process, patience=0.1)
    assert process.returncode == -9
    _, alive = psutil.wait_procs([child], timeout=60)
    assert alive == []
