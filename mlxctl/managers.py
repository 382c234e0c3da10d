"""launchd and systemd as ``mlxctl service`` speaks to them: by their own commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mlxctl.errors import CtlError, ExitCode
from mlxctl.servicefiles import LABEL, UNIT

NAMES = ("launchd", "systemd")

_NOT_LOADED = 113
"""launchctl's exit code for a job that it does not know."""

_IN_PROGRESS = 36
"""launchctl's exit code for a job that is being taken out already (EINPROGRESS)."""

_BUSY = 5
"""launchctl's exit code of a bootstrap while the job before it is still going (EIO)."""

_PAUSE_SECONDS = 0.2

_GONE_SECONDS = 3600.0
"""How long a job may take to end; launchd itself kills it after its ``ExitTimeOut``."""

_BOOTSTRAP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """What the manager knows. ``state`` is its own word; ``pid`` None while nothing runs."""

    manager: str
    file: str
    installed: bool
    loaded: bool
    running: bool
    state: str
    pid: int | None
    restarts: int | None
    last_exit: str | None


class Manager(Protocol):
    """One service manager, for this user. Every method raises CtlError where it refuses."""

    name: str
    file: Path

    def install(self, text: bytes) -> None:
        """Write the service file and start the service, replacing one that is there."""

    def uninstall(self) -> bool:
        """Stop the service and remove its file; False if there was none."""

    def start(self) -> None:
        """Start what is installed."""

    def stop(self) -> None:
        """Stop the service until it is started again, or the user logs in again."""

    def restart(self) -> None:
        """Stop the service if it runs, and start it."""

    def status(self) -> ServiceStatus:
        """How the service does."""

    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        """The command that shows the service's log."""


def default_manager() -> str:
    """The manager of this platform."""
    return "launchd" if sys.platform == "darwin" else "systemd"


@dataclass(frozen=True, slots=True)
class Waiting:
    """The time that a manager passes and reads while it waits, in seconds."""

    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Ask again and again until it holds; False if it does not within ``seconds``."""
        deadline = self.clock() + seconds
        while not condition():
            if self.clock() >= deadline:
                return False
            self.sleep(_PAUSE_SECONDS)
        return True


def manager_of(
    name: str, environ: Mapping[str, str] | None = None, waiting: Waiting | None = None
) -> Manager:
    """The manager of a name, for this user."""
    environ = os.environ if environ is None else environ
    home = Path(environ.get("HOME") or Path.home())
    if name == "launchd":
        return Launchd(home, waiting)
    base = environ.get("XDG_CONFIG_HOME")
    config = Path(base) if base and Path(base).is_absolute() else home / ".config"
    return Systemd(config / "systemd" / "user" / UNIT)


class Launchd:
    """The LaunchAgent of this user's login session, through launchctl.

    launchctl answers before launchd is done: a job that was taken out is still ending when
    ``bootout`` returns, and one that was signalled still runs. So each verb waits for what it
    asked for.
    """

    name = "launchd"

    def __init__(self, home: Path, waiting: Waiting | None = None) -> None:
        self.file = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self.log = home / "Library" / "Logs" / "mlxceld.log"
        self._domain = f"gui/{os.getuid()}"
        self._target = f"{self._domain}/{LABEL}"
        self._waiting = waiting or Waiting()

    def install(self, text: bytes) -> None:
        """See :class:`Manager`."""
        self._take_out()
        _write(self.file, text)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # A job that was disabled once stays so, whatever its file says.
        self._ctl("enable", self._target)
        self._bootstrap()

    def uninstall(self) -> bool:
        """See :class:`Manager`."""
        loaded = self._take_out()
        return _remove(self.file) or loaded

    def start(self) -> None:
        """See :class:`Manager`."""
        _require(self.file)
        if self._loaded():
            self._ctl("kickstart", self._target)
        else:
            self._bootstrap()

    def stop(self) -> None:
        """See :class:`Manager`; the job stays loaded, and ends well, so that it is not kept up."""
        if not self.status().running:
            return
        self._ctl("kill", "SIGTERM", self._target)
        if not self._waiting.until(lambda: not self.status().running, _GONE_SECONDS):
            raise self._late("stop")

    def restart(self) -> None:
        """See :class:`Manager`; what runs is finished first, which ``kickstart -k`` would kill."""
        _require(self.file)
        self.stop()
        self.start()

    def status(self) -> ServiceStatus:
        """See :class:`Manager`; launchctl's output is for people, and read with care."""
        done = _run("launchctl", "print", self._target)
        said = done.stdout if done.returncode == 0 else ""

        def value(key: str) -> str | None:
            found = re.search(rf"^\s*{key} = (.+?)\s*$", said, re.M)
            return found.group(1) if found else None

        pid = value("pid")
        state = value("state") or ("not loaded" if done.returncode else "unknown")
        runs = value("runs")
        return ServiceStatus(
            manager=self.name,
            file=str(self.file),
            installed=self.file.is_file(),
            loaded=done.returncode == 0,
            running=state == "running",
            state=state,
            pid=int(pid) if pid and pid.isdigit() else None,
            restarts=max(0, int(runs) - 1) if runs and runs.isdigit() else None,
            last_exit=value("last exit code"),
        )

    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        """See :class:`Manager`."""
        return ["tail", "-n", str(lines), *(["-F"] if follow else []), str(self.log)]

    def _loaded(self) -> bool:
        code = _run("launchctl", "print", self._target).returncode
        if code not in (0, _NOT_LOADED):
            return False
        return code == 0

    def _take_out(self) -> bool:
        """Have launchd forget the job, and wait until it has; False if it knew none."""
        if not self._loaded():
            return False
        done = _run("launchctl", "bootout", self._target)
        if done.returncode not in (0, _IN_PROGRESS, _NOT_LOADED):
            raise _refused(["launchctl", "bootout", self._target], done)
        if not self._waiting.until(lambda: not self._loaded(), _GONE_SECONDS):
            raise self._late("bootout")
        return True

    def _bootstrap(self) -> None:
        """Load and start the job; launchd refuses for a moment after one of its name has gone."""
        words = ["launchctl", "bootstrap", self._domain, str(self.file)]
        done = _run(*words)

        def settled() -> bool:
            nonlocal done
            if done.returncode == _BUSY:
                done = _run(*words)
            return done.returncode != _BUSY

        self._waiting.until(settled, _BOOTSTRAP_SECONDS)
        if done.returncode:
            raise _refused(words, done)

    def _late(self, verb: str) -> CtlError:
        return CtlError(
            "manager",
            f"launchd has not ended {self._target} {_GONE_SECONDS:g} s after {verb}",
            ExitCode.TIMED_OUT,
            hint="see what it does with: mlxctl service logs",
        )

    def _ctl(self, *words: str) -> None:
        done = _run("launchctl", *words)
        if done.returncode:
            raise _refused(["launchctl", *words], done)


class Systemd:
    """The unit of this user's own manager, through systemctl."""

    name = "systemd"

    def __init__(self, file: Path) -> None:
        self.file = file

    def install(self, text: bytes) -> None:
        """See :class:`Manager`."""
        _write(self.file, text)
        self._ctl("daemon-reload")
        self._ctl("enable", UNIT)
        # Also one that runs: what runs may be of another file.
        self._ctl("--no-block", "restart", UNIT)

    def uninstall(self) -> bool:
        """See :class:`Manager`."""
        if not self.file.is_file():
            return False
        self._ctl("disable", "--now", UNIT)
        _remove(self.file)
        self._ctl("daemon-reload")
        return True

    def start(self) -> None:
        """See :class:`Manager`."""
        _require(self.file)
        self._ctl("--no-block", "start", UNIT)

    def stop(self) -> None:
        """See :class:`Manager`."""
        self._ctl("stop", UNIT)

    def restart(self) -> None:
        """See :class:`Manager`."""
        _require(self.file)
        self._ctl("--no-block", "restart", UNIT)

    def status(self) -> ServiceStatus:
        """See :class:`Manager`."""
        names = "LoadState,ActiveState,SubState,MainPID,NRestarts,Result,ExecMainStatus"
        done = _run("systemctl", "--user", "show", UNIT, f"--property={names}")
        if done.returncode:
            raise _refused(["systemctl", "--user", "show", UNIT], done)
        told = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
        active = told.get("ActiveState", "unknown")
        pid = int(told.get("MainPID") or 0)
        result = told.get("Result", "")
        last = f"{result}, code {told.get('ExecMainStatus', '?')}" if result else None
        return ServiceStatus(
            manager=self.name,
            file=str(self.file),
            installed=self.file.is_file(),
            loaded=told.get("LoadState") == "loaded",
            running=active in ("active", "reloading"),
            state=f"{active} ({told.get('SubState', '?')})",
            pid=pid or None,
            restarts=int(told.get("NRestarts") or 0),
            last_exit=last,
        )

    def log_command(self, lines: int, *, follow: bool) -> list[str]:
        """See :class:`Manager`."""
        words = ["journalctl", "--user", "--unit", UNIT, "--lines", str(lines)]
        return [*words, *(["--follow"] if follow else ["--no-pager"])]

    def _ctl(self, *words: str) -> None:
        done = _run("systemctl", "--user", *words)
        if done.returncode:
            raise _refused(["systemctl", "--user", *words], done)


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which(words[0])
    if program is None:
        raise CtlError(
            "no_manager",
            f"{words[0]} is not on this machine, so there is no service manager to ask",
            ExitCode.REFUSED,
            hint="without one, run: mlxceld start --detach --model demo",
        )
    return subprocess.run(  # noqa: S603 - the words are our own, and no shell reads them
        [program, *words[1:]], capture_output=True, text=True, check=False
    )


def _refused(words: Sequence[str], done: subprocess.CompletedProcess[str]) -> CtlError:
    said = " ".join((done.stderr or done.stdout).split()) or "no reason was given"
    hint = ""
    if "bus" in said.lower():
        hint = "without a user manager here, run: mlxceld start --detach --model demo"
    elif words[0] == "launchctl":
        hint = "an agent needs a login at the screen; see: mlxctl service install --print --system"
    return CtlError(
        "manager",
        f"`{' '.join(words)}` failed with code {done.returncode}: {said}",
        ExitCode.REFUSED,
        hint=hint,
    )


def _write(file: Path, text: bytes) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Never seen half written.
        draft = file.with_name(f".{file.name}.new")
        draft.write_bytes(text)
        draft.chmod(0o644)
        draft.replace(file)
    except OSError as error:
        raise CtlError(
            "service_file", f"cannot write {file}: {error.strerror or error}", ExitCode.REFUSED
        ) from error


def _remove(file: Path) -> bool:
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def _require(file: Path) -> None:
    if not file.is_file():
        raise CtlError(
            "not_installed",
            f"the service is not installed: there is no {file}",
            ExitCode.REFUSED,
            hint="install it with: mlxctl service install -- --model demo",
        )
