"""Where things are on this platform: the settings file, the state folder, the admin socket.

The daemon and ``mlxctl`` both ask here, so that they agree.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlxceld.config.table import Settings

APP = "mlxceld"
CONFIG_NAME = "mlxceld.yaml"
SOCKET_NAME = "admin.sock"

LOCK_NAME = "mlxceld.pid"
"""The file in the state folder that a running daemon holds locked."""

FAILURE_NAME = "last-failure.json"
"""What a start that failed leaves in the state folder, and one that went well removes."""

SOCKET_PATH_LIMIT = 103 if sys.platform == "darwin" else 107
"""The longest path that a Unix socket's address holds, without its final NUL (unix(4), unix(7))."""


def config_files(environ: Mapping[str, str] | None = None) -> list[Path]:
    """The places of the settings file, the user's before the system's."""
    environ = os.environ if environ is None else environ
    if sys.platform == "darwin":
        support = Path("Library/Application Support") / APP / CONFIG_NAME
        return [_home(environ) / support, Path("/") / support]
    user = environ.get("XDG_CONFIG_HOME")
    base = Path(user) if user and Path(user).is_absolute() else _home(environ) / ".config"
    return [base / APP / CONFIG_NAME, Path("/etc") / APP / CONFIG_NAME]


def default_state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The state folder where no setting names one; systemd's ``$STATE_DIRECTORY`` wins."""
    environ = os.environ if environ is None else environ
    given = environ.get("STATE_DIRECTORY", "").split(":")[0]
    if given and Path(given).is_absolute():
        return Path(given)
    if sys.platform == "darwin":
        return _home(environ) / "Library/Application Support" / APP
    user = environ.get("XDG_STATE_HOME")
    base = Path(user) if user and Path(user).is_absolute() else _home(environ) / ".local/state"
    return base / APP


def failure_file(state_dir: Path) -> Path:
    """Where a start that failed says why."""
    return state_dir / FAILURE_NAME


def admin_socket(settings: Settings) -> Path:
    """The Unix socket of the admin API.

    By default in the state folder. A path that the system's limit forbids is replaced by a short
    one, named by a digest of the long one, in a folder of this user's own under /tmp.
    """
    wanted = settings.admin.socket or settings.state_dir / SOCKET_NAME
    if len(os.fsencode(wanted)) <= SOCKET_PATH_LIMIT:
        return wanted
    digest = hashlib.sha256(os.fsencode(wanted)).hexdigest()[:16]
    # Fixed, not $TMPDIR, which differs between a service and a shell.
    return Path("/tmp") / f"{APP}-{os.getuid()}" / f"{digest}.sock"  # noqa: S108


def find_admin_socket(environ: Mapping[str, str] | None = None) -> Path:
    """Where the daemon of this user most likely listens, from environment and settings file."""
    return admin_socket(find_settings(environ))


def find_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """What the daemon of this user was most likely started with."""
    from mlxceld.config.resolve import resolve
    from mlxceld.config.yamlfile import ConfigFileError

    environ = os.environ if environ is None else environ
    try:
        resolved = resolve({}, environ=environ)
    except ConfigFileError:
        # The daemon would not start with this file; one that runs was started without it.
        resolved = resolve({}, environ=environ, config_file=None, search=False)
    return resolved.settings


def working_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The working folder; where that was deleted, what the shell calls it, else the root."""
    environ = os.environ if environ is None else environ
    try:
        return Path.cwd()
    except OSError:
        named = Path(environ.get("PWD", "/"))
        return named if named.is_absolute() else Path("/")


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME")
    if home:
        return Path(home)
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")  # a user who is not in the user database, as login(1) has it
