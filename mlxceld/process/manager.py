"""Which service manager runs this process, told from its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping


class ManagedError(Exception):
    """Detaching under a service manager, which would lose sight of the daemon."""


def service_manager(environ: Mapping[str, str] | None = None) -> str | None:
    """``"systemd"`` or ``"launchd"`` if one of them started this process, else None."""
    environ = os.environ if environ is None else environ
    if environ.get("NOTIFY_SOCKET"):
        return "systemd"
    if environ.get("INVOCATION_ID"):
        # A terminal that runs as a unit hands the variable on to every shell in it; systemd
        # also says which process it meant, and a script of the unit may stand between.
        meant = environ.get("SYSTEMD_EXEC_PID")
        if meant is None or meant in (str(os.getpid()), str(os.getppid())):
            return "systemd"
    name = environ.get("XPC_SERVICE_NAME", "")
    # Terminals have "0" or the application's own name here.
    if name and name != "0" and not name.startswith("application."):
        return "launchd"
    return None


def refuse_under_manager(environ: Mapping[str, str] | None = None) -> None:
    """Raise ManagedError, with the command to use instead, under a service manager."""
    manager = service_manager(environ)
    if manager is not None:
        raise ManagedError(
            f"{manager} runs this process and needs the daemon in the foreground:"
            " use `mlxceld serve` in its service file (`mlxctl service install` writes one)"
        )
