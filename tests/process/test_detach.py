"""Each start runs in a process of its own: this one has threads, and must not fork."""

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

START = """
import fcntl, json, os, signal, sys
from pathlib import Path
from mlxceld.process.detach import StartError, start_detached

# As in a terminal, also where the tests themselves run in the background and ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
state = Path(sys.argv[1])
patience = float(sys.argv[2])

def say(line):
    print("progress", line, flush=True)

def serve(report):
{serve}

try:
    started = start_detached(state, serve, progress=say, patience=patience)
    print("ready", started.pid, started.address)
except StartError as error:
    print("error", error.exit_code, error)
print("parent", os.getpid())
"""


def start(
    state: Path, serve: str, *, patience: float = 60, wait: bool = True
) -> subprocess.Popen[str]:
    body = "\n".join("    " + line for line in serve.strip().splitlines())
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", START.format(serve=body), str(state), str(patience)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if wait:
        # Ends only when every copy of the pipes is closed: the daemon must hold none of them.
        out, err = process.communicate(timeout=60)
        process.lines, process.errors = out.splitlines(), err
    return process


UNTIL_TERM = """
print("working", flush=True)
Path("facts.json").write_text(json.dumps({
    "cwd": os.getcwd(), "sid": os.getsid(0), "pid": os.getpid(), "ppid": os.getppid(),
    "fds": sorted(int(name) for name in os.listdir("/dev/fd")),
    "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL}))
report.progress("loading")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
report.ready("http://127.0.0.1:1")
signal.sigwait([signal.SIGTERM])
return 0
"""


def test_the_parent_returns_when_the_daemon_is_ready(tmp_path: Path) -> None:
    state = tmp_path / "state"
    process = start(state, UNTIL_TERM)
    assert process.returncode == 0, process.errors
    facts = json.loads((state / "facts.json").read_text())
    pid = facts["pid"]
    try:
        assert process.lines[0] == "progress loading"
        assert process.lines[1] == f"ready {pid} http://127.0.0.1:1"
        assert process.lines[2].startswith("parent ")
        assert len(process.lines) == 3, "the caller's code must run once"
        assert facts["cwd"] == str(state)
        assert facts["sid"] not in (os.getsid(0), pid), "a session of its own, led by nobody"
        assert facts["term"]
        # Standard streams, the report's pipe, the log, and the folder being listed.
        assert len(facts["fds"]) <= 6
        log = state / "mlxceld.log"
        assert log.read_text() == "working\n"
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        assert stat.S_IMODE((state / "facts.json").stat().st_mode) == 0o600
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
    finally:
        os.kill(pid, signal.SIGTERM)


def test_the_error_and_exit_code_come_through(tmp_path: Path) -> None:
    process = start(tmp_path, 'report.failed("no such model: ünknown", 78)\nreturn 78')
    assert process.lines[0] == "error 78 no such model: ünknown"
    assert (tmp_path / "mlxceld.log").read_text() == "mlxceld: no such model: ünknown\n"


def test_a_failed_start_returns_only_when_its_process_is_gone(tmp_path: Path) -> None:
    # What it still has to do after the report takes far longer than a pipe.
    ending = 'report.failed("no", 1)\nsum(range(10**7))\nPath("last").touch()\nreturn 1'
    process = start(tmp_path, ending)
    assert process.lines[0] == "error 1 no"
    assert (tmp_path / "last").exists()


def test_an_exception_comes_through_with_its_traceback_in_the_log(tmp_path: Path) -> None:
    process = start(tmp_path, 'raise ValueError("odd")')
    assert process.lines[0] == "error 1 the start failed: ValueError: odd"
    assert "Traceback" in (tmp_path / "mlxceld.log").read_text()


def test_a_daemon_that_dies_without_a_word(tmp_path: Path) -> None:
    process = start(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert process.lines[0] == (
        f"error 1 the daemon ended before it was ready; see {tmp_path / 'mlxceld.log'}"
    )


SILENT = """
lock = open("alive", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
report.progress("locked")
signal.pause()
"""


def wait_for_the_end(state: Path) -> None:
    """Return when the silent daemon has ended: the kernel then hands its lock on."""
    with (state / "alive").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def test_a_silent_daemon_is_ended_when_patience_is_over(tmp_path: Path) -> None:
    process = start(tmp_path, SILENT, patience=1)
    assert process.lines[0] == "progress locked"
    assert process.lines[1].startswith("error 1 the daemon said nothing for 1 s and was ended")
    wait_for_the_end(tmp_path)


def test_ctrl_c_ends_a_start_that_is_under_way(tmp_path: Path) -> None:
    process = start(tmp_path, SILENT, wait=False)
    assert process.stdout is not None
    assert process.stdout.readline() == "progress locked\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    wait_for_the_end(tmp_path)
