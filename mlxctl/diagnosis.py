"""What ``mlxctl doctor`` looks at."""

from __future__ import annotations

import fcntl
import json
import os
import plistlib
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxctl import tables
from mlxctl.context import Ctl
from mlxctl.errors import CtlError
from mlxctl.modelfiles import broken_files

OPEN_FILES = 8192
"""What the daemon raises its limit of open files to, where it may."""

_CLOCK_SECONDS = 5.0
_EARLIEST_UNIX = 1_735_689_600  # 2025: no clock that is set is before the program


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``level`` is ok, note, slow, wrong or unknown; ``fix`` what to do."""

    check: str
    level: str
    text: str
    fix: str = ""


@dataclass(slots=True)
class Scene:
    """What the checks look at: the daemon's own word, None where none answers."""

    ctl: Ctl
    settings: Any
    state_dir: Path
    status: dict[str, Any] | None
    stats: dict[str, Any] | None
    unreachable: CtlError | None


Check = Callable[[Scene], Iterator[Finding]]


def examine(ctl: Ctl) -> list[Finding]:
    """Look at everything; a check that fails itself is a finding too."""
    from mlxceld.config import ConfigFileError, resolve

    findings: list[Finding] = []
    try:
        resolved = resolve({})
        findings.append(_settings(resolved))
    except ConfigFileError as error:
        resolved = resolve({}, search=False)
        findings.append(
            Finding(
                "settings",
                "wrong",
                "; ".join(str(one) for one in error.errors),
                "correct the file, then: mlxctl config check",
            )
        )
    status = stats = unreachable = None
    try:
        status, stats = ctl.client.get("status"), ctl.client.get("cache/stats")
    except CtlError as error:
        unreachable = error
    scene = Scene(ctl, resolved.settings, resolved.settings.state_dir, status, stats, unreachable)
    for check in CHECKS:
        try:
            findings += check(scene)
        except Exception as error:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            findings.append(Finding(name, "unknown", f"could not be looked at: {error}"))
    return findings


def _settings(resolved: Any) -> Finding:
    if resolved.warnings:
        return Finding(
            "settings", "note", "; ".join(resolved.warnings), "mlxctl config check shows them all"
        )
    return Finding("settings", "ok", str(resolved.config_file or "no file; defaults"))


def check_daemon(scene: Scene) -> Iterator[Finding]:
    """Whether a daemon answers, and is ready."""
    status = scene.status
    if status is None:
        error = scene.unreachable
        assert error is not None
        yield Finding("daemon", "wrong", error.message, error.hint)
        return
    if status["fault"]:
        yield Finding("daemon", "wrong", status["fault"], "mlxctl service restart; see its log")
    elif status["ready"]:
        yield Finding("daemon", "ok", f"ready, version {status['version']}")
    else:
        yield Finding(
            "daemon",
            "note" if status["state"] in ("loading", "draining") else "wrong",
            f"{status['state']} {status['detail']}".rstrip(),
            "mlxctl wait --for ready" if status["state"] == "loading" else "restart it",
        )


def check_public_api(scene: Scene) -> Iterator[Finding]:
    """Whether clients reach the public API where it listens."""
    if scene.status is None:
        return
    import requests

    host, port = scene.status["host"], scene.status["port"]
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - replaced
    url = f"http://[{local}]:{port}" if ":" in local else f"http://{local}:{port}"
    try:
        with requests.Session() as session:
            session.trust_env = False
            code = session.get(f"{url}/livez", timeout=5).status_code
    except requests.RequestException as error:
        yield Finding("clients", "wrong", f"{url} does not answer: {error}", "see the daemon's log")
        return
    if code == 200:
        yield Finding("clients", "ok", f"{url} answers; clients use {url}/v1")
    else:
        yield Finding("clients", "wrong", f"{url}/livez is {code}", "mlxctl service restart")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        if os.environ.get(name) and not (os.environ.get("NO_PROXY") or os.environ.get("no_proxy")):
            yield Finding(
                "proxy",
                "note",
                f"{name} is set: clients may send requests for {local} to the proxy",
                f"export NO_PROXY=localhost,{local}",
            )
            break


def check_device(scene: Scene) -> Iterator[Finding]:
    """What computes, and with which matrix library."""
    model = (scene.status or {}).get("model")
    if model is not None:
        slow = sys.platform == "darwin" and "cpu" in model["device"].lower()
        yield Finding(
            "device",
            "slow" if slow else "ok",
            model["device"],
            "Metal was not found: run the daemon in a login session" if slow else "",
        )
    if sys.platform != "linux":
        return
    library = _openblas()
    if library is None:
        yield Finding(
            "matrix library",
            "slow",
            "no OpenBLAS: MLX's own on a CPU is some fifty times slower",
            "apt-get install libopenblas0-pthread, or pip install ngsolve-openblas",
        )
    else:
        yield Finding("matrix library", "ok", library)


def check_memory(scene: Scene) -> Iterator[Finding]:
    """Whether the budgets of the stores fit beside the model."""
    status, stats = scene.status, scene.stats
    if status is None or stats is None or status["model"] is None:
        return
    limit, weights = status["memory"]["limit"], status["model"]["weight_bytes"]
    budget = stats["capacity_bytes"] + stats["snapshot_capacity_bytes"]
    size = tables.size_text
    if not limit:
        yield Finding("memory", "unknown", "the device tells no limit")
    elif weights + budget > limit:
        yield Finding(
            "memory",
            "wrong",
            f"the model ({size(weights)}) and the caches' budgets ({size(budget)}) exceed the"
            f" limit of {size(limit)}",
            f"mlxctl cache resize --capacity {max(0, (limit - weights) // 2)}",
        )
    else:
        yield Finding(
            "memory", "ok", f"{size(limit - weights)} beside the model, budgets {size(budget)}"
        )


def check_budget(scene: Scene) -> Iterator[Finding]:
    """Whether anything fits into the stores at all."""
    stats = scene.stats
    if stats is None:
        return
    for store, prefix, flag in (
        ("kv", "", "--capacity"),
        ("snapshots", "snapshot_", "--snapshot-capacity"),
    ):
        refused = stats[f"{prefix}rejections_oversized"]
        capacity = stats[f"{prefix}capacity_bytes"]
        if refused and not stats[f"{prefix}inserts"]:
            level, note = "wrong", "nothing was ever stored: the budget is below one entry"
        elif refused:
            level, note = "note", "entries were larger than the budget"
        else:
            continue
        yield Finding(
            f"{store} budget",
            level,
            f"{note} ({refused} refused at {tables.size_text(capacity)})",
            f"mlxctl cache resize {flag} {max(2 * capacity, 2**30)}",
        )
    block = stats["paged_block_size"] and stats["paged_blocks_live"]
    one = stats["paged_bytes_in_use"] // stats["paged_blocks_live"] if block else 0
    if 0 < stats["capacity_bytes"] < one:
        yield Finding(
            "kv budget",
            "wrong",
            f"the budget is below one block ({tables.size_text(one)})",
            "mlxctl cache resize --capacity 2GiB",
        )
    if not stats["enabled"]:
        yield Finding(
            "kv store", "slow", "disabled: nothing is reused", "mlxctl cache resize --capacity 2GiB"
        )


def check_service(scene: Scene) -> Iterator[Finding]:
    """How launchd treats the daemon."""
    from mlxctl.managers import manager_of

    file = manager_of("launchd").file
    if not file.is_file():
        return
    try:
        kind = plistlib.loads(file.read_bytes()).get("ProcessType")
    except (plistlib.InvalidFileException, ValueError) as error:
        yield Finding("launchd", "wrong", f"{file}: {error}", "mlxctl service install")
        return
    if kind == "Interactive":
        yield Finding("launchd", "ok", "ProcessType Interactive")
    else:
        yield Finding(
            "launchd",
            "slow",
            f"ProcessType is {kind or 'not set'}: macOS keeps it to the slow cores",
            "mlxctl service install writes the file anew",
        )


def check_open_files(scene: Scene) -> Iterator[Finding]:
    """How many connections the daemon can have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    where = "this shell"
    pid = (scene.status or {}).get("pid")
    limits = Path(f"/proc/{pid}/limits")
    if pid and limits.is_file():
        row = next(
            line for line in limits.read_text().splitlines() if line.startswith("Max open files")
        )
        word = row.split()[3]
        hard, where = (-1 if word == "unlimited" else int(word)), "the daemon"
    if hard == resource.RLIM_INFINITY or hard >= OPEN_FILES:
        yield Finding("open files", "ok", f"{where} may open {OPEN_FILES} or more")
    else:
        yield Finding(
            "open files",
            "note",
            f"{where} may open {hard}, and each connection is one",
            f"LimitNOFILE={OPEN_FILES} in the unit, or ulimit -n {OPEN_FILES}",
        )


def check_leftovers(scene: Scene) -> Iterator[Finding]:
    """A socket without a daemon, or a daemon without a socket."""
    path, lock = scene.ctl.target.socket, scene.state_dir / "mlxceld.pid"
    if scene.ctl.target.url is None and path.is_socket() and scene.status is None:
        probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        probe.settimeout(2)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            yield Finding(
                "socket",
                "note",
                f"{path} is what a dead daemon left",
                "nothing to do: the next start replaces it",
            )
        except OSError:
            pass  # told as the daemon's own finding
        finally:
            probe.close()
    holder = _holder(lock)
    if holder is not None and scene.status is None:
        yield Finding(
            "state folder",
            "wrong",
            f"process {holder or '?'} works in {scene.state_dir} and does not answer here",
            "mlxceld stop, or name its socket with --socket",
        )
    elif holder is None and lock.is_file() and lock.stat().st_size and scene.status is None:
        yield Finding(
            "state folder",
            "note",
            f"{lock} is of a daemon that was killed",
            "nothing to do: the lock went with it",
        )


def check_failure(scene: Scene) -> Iterator[Finding]:
    """What the last start under a manager left."""
    from mlxctl.commands.service import last_failure

    failure = last_failure() if scene.status is None else None
    if failure is not None:
        yield Finding("last start", "wrong", failure["text"], "then: mlxctl service restart")


def check_clock(scene: Scene) -> Iterator[Finding]:
    """Whether the clock is set, and has not jumped since the daemon's start."""
    now = scene.ctl.wall()
    if now < _EARLIEST_UNIX:
        yield Finding("clock", "wrong", "the clock is not set", "set it: timedatectl set-ntp true")
        return
    if scene.status is not None:
        should = scene.status["started_at_unix"] + scene.status["uptime_seconds"]
        if abs(now - should) > _CLOCK_SECONDS:
            yield Finding(
                "clock",
                "note",
                f"the clock was set by {tables.duration_text(abs(now - should))} since the"
                " daemon's start (or the machine slept)",
                "times of idle entries are not affected",
            )
            return
    yield Finding("clock", "ok", "set")


def check_model(scene: Scene) -> Iterator[Finding]:
    """Whether the model's files are whole."""
    model = (scene.status or {}).get("model")
    named = model["path"] if model else scene.settings.model
    if named is None:
        yield Finding("model", "note", "none is set", "mlxceld serve --model demo")
        return
    folder = Path(named)
    if not folder.is_dir():
        # A hub id, the demo or a file to import: known when it is loaded.
        return
    problems = list(broken_files(folder))
    if problems:
        yield Finding("model", "wrong", "; ".join(problems), "fetch or convert the model anew")
    else:
        yield Finding("model", "ok", f"{folder}: all files are whole")


CHECKS: tuple[Check, ...] = (
    check_daemon,
    check_failure,
    check_leftovers,
    check_public_api,
    check_device,
    check_memory,
    check_budget,
    check_model,
    check_service,
    check_open_files,
    check_clock,
)


def _openblas() -> str | None:
    """The OpenBLAS that the daemon would put in front of MLX."""
    import ctypes
    import importlib.metadata

    for name in ("libopenblas.so.0", "libopenblas.so"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    for name in ("ngsolve-openblas", "cmeel-openblas"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _holder(lock: Path) -> int | None:
    """The process that holds a state folder's lock, 0 if it does not say; None if nobody does."""
    try:
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                try:
                    return int(json.loads(file.read(4096))["pid"])
                except (ValueError, KeyError, TypeError):
                    return 0
    except OSError:
        return None
    return None
