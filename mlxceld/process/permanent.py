"""Faults that another start does not mend, told where a service manager would start again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from mlxceld.config.folders import FolderError, open_own, private_folder
from mlxceld.config.paths import failure_file
from mlxceld.process.manager import service_manager

log = logging.getLogger("mlxceld.daemon")


def failed_start_exit_code(
    text: str,
    exit_code: int,
    state_dir: Path,
    *,
    permanent: bool,
    environ: Mapping[str, str] | None = None,
) -> int:
    """The code to exit with after a start that failed, which is written down for people to see.

    launchd starts again whatever ends with another code than 0, so that a permanent fault ends
    with 0 under it. systemd is told by its unit which codes are permanent.
    """
    manager = service_manager(environ)
    if manager is None:
        # Whoever started it sees the text.
        return exit_code
    record = {
        "at_unix": time.time(),
        "text": text,
        "exit_code": exit_code,
        "permanent": permanent,
    }
    with contextlib.suppress(OSError, FolderError):
        private_folder(state_dir)
        fd = open_own(failure_file(state_dir), os.O_WRONLY | os.O_CREAT)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.truncate()
            json.dump(record, file)
    if permanent and manager == "launchd":
        log.error("this does not mend itself; launchd is not to start again until it is mended")
        return os.EX_OK
    return exit_code


def start_went_well(state_dir: Path) -> None:
    """Forget the last failed start."""
    with contextlib.suppress(OSError):
        failure_file(state_dir).unlink(missing_ok=True)
