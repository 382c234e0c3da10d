"""How a daemon is started on this machine, for whoever finds none."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping


def start_hint(*, named: bool, environ: Mapping[str, str] | None = None) -> str:
    """The next command to try where no daemon answers; ``named`` if a certain one was asked."""
    from mlxctl.managers import default_manager, manager_of

    environ = os.environ if environ is None else environ
    other = "; or name its socket with: mlxctl --socket PATH ..."
    if named:
        other = "; or leave out --socket and --url, and your own daemon is meant"
    if manager_of(default_manager(), environ).file.is_file():
        return "start it with: mlxctl service start" + other
    session = environ.get("XDG_RUNTIME_DIR") and shutil.which("systemctl")
    if sys.platform == "darwin" or session:
        return "start one with: mlxctl service install -- --model demo" + other
    return "start one with: mlxceld start --detach --model demo" + other
