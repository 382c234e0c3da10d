"""Which process listens on a port, for the message that the port is taken."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_LISTENING = "0A"
_LSOF_SECONDS = 5


def port_holder(port: int) -> str | None:
    """``process 123 (name)``; None if it cannot be told, as for another user's process."""
    return _from_proc(port) if Path("/proc/net/tcp").exists() else _from_lsof(port)


def _from_proc(port: int) -> str | None:
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not inodes:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and _has_open(process, inodes):
            return _described(process.name, _first_line(process / "comm"))
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for columns in map(str.split, lines):
            local, state, inode = columns[1], columns[3], columns[9]
            if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                yield inode


def _has_open(process: Path, names: set[str]) -> bool:
    try:
        return any(os.readlink(fd) in names for fd in (process / "fd").iterdir())  # noqa: PTH115
    except OSError:
        # Another user's, or one that has just ended.
        return False


def _first_line(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return ""


def _from_lsof(port: int) -> str | None:
    program = shutil.which("lsof", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")
    if program is None:
        return None
    try:
        output = subprocess.run(  # noqa: S603 - a system tool, with fixed arguments
            [program, "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-Fpc"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_LSOF_SECONDS,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_lsof(output)


def parse_lsof(output: str) -> str | None:
    """The first process in lsof's field output: a line ``p`` with its id, then ``c`` its name."""
    fields = {line[:1]: line[1:] for line in reversed(output.splitlines())}
    return _described(fields["p"], fields.get("c", "")) if fields.get("p") else None


def _described(pid: str, name: str) -> str:
    return f"process {pid} ({name})" if name else f"process {pid}"
