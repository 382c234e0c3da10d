"""The files by which launchd and systemd run the daemon for one user."""

from __future__ import annotations

import plistlib
import re
from collections.abc import Sequence
from pathlib import Path

LABEL = "org.mlxceld.daemon"
"""The job's name with launchd; its file is ``LABEL.plist``."""

UNIT = "mlxceld.service"
"""The unit's name with systemd."""

STOP_MARGIN_SECONDS = 30
"""What the manager grants beyond the drain limit before it kills."""

_UNIT_TEMPLATE = """\
[Unit]
Description=mlxceld, the background LLM service
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
# Wrong options or settings do not become right by starting again.
RestartPreventExitStatus=2 78
# Loading a large model takes its time; the daemon asks for more while it gets on.
TimeoutStartSec=120
TimeoutStopSec={stop}
WatchdogSec=60
# No StateDirectory=: before version 254 it is elsewhere than where mlxctl looks for the daemon.
UMask=0077
LimitNOFILE=8192
NoNewPrivileges=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes
SystemCallArchitectures=native
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK

[Install]
WantedBy=default.target
"""


_SYSTEM_UNIT_TEMPLATE = """\
[Unit]
Description=mlxceld, the background LLM service
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
# Wrong options or settings do not become right by starting again.
RestartPreventExitStatus=2 78
# Loading a large model takes its time; the daemon asks for more while it gets on.
TimeoutStartSec=120
TimeoutStopSec={stop}
WatchdogSec=60
# A user that exists only while it runs; mlxctl needs --socket, and root.
DynamicUser=yes
StateDirectory=mlxceld
StateDirectoryMode=0700
CacheDirectory=mlxceld
Environment=HOME=%S/mlxceld HF_HOME=%C/mlxceld
UMask=0077
LimitNOFILE=8192
LimitMEMLOCK=infinity
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RemoveIPC=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
# Not set, since MLX compiles kernels while it runs and may use a GPU:
# MemoryDenyWriteExecute=, PrivateDevices=, ProcSubset=pid.

[Install]
WantedBy=multi-user.target
"""


def systemd_system_unit(program: str, arguments: Sequence[str], *, drain_timeout: float) -> str:
    """The text of a unit for the whole machine, shut in as far as MLX bears it.

    ``program`` is an absolute path outside of all homes, which the unit cannot see.
    """
    words = [_word(program), "serve", *(_word(argument) for argument in arguments)]
    return _SYSTEM_UNIT_TEMPLATE.format(command=" ".join(words), stop=stop_seconds(drain_timeout))


def launch_daemon_plist(
    program: Path, arguments: Sequence[str], *, home: Path, drain_timeout: float
) -> bytes:
    """The property list of a LaunchDaemon, for a Mac on which nobody logs in.

    It runs as the user whose home is ``home``, from the start of the machine on.
    """
    values = plistlib.loads(
        launchd_plist(program, arguments, home=home, drain_timeout=drain_timeout)
    )
    del values["LimitLoadToSessionType"]
    values |= {
        "UserName": home.name,
        "EnvironmentVariables": {"HOME": str(home)},
        "WorkingDirectory": str(home),
    }
    # In a daemon of the system this key would set the limits of the whole machine.
    del values["SoftResourceLimits"]
    return plistlib.dumps(values, sort_keys=False)


def launchd_plist(
    program: Path, arguments: Sequence[str], *, home: Path, drain_timeout: float
) -> bytes:
    """The LaunchAgent's property list, as XML.

    ``program`` is absolute; ``arguments`` follow ``serve``. The log file gets only what the
    daemon prints: it is kept beside the user's other logs, in a folder that is always there.
    """
    log = str(home / "Library" / "Logs" / "mlxceld.log")
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": [str(program), "serve", *arguments],
            "RunAtLoad": True,
            # A clean stop stays stopped; a crash comes back, no sooner than the throttle allows.
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 30,
            "ExitTimeOut": stop_seconds(drain_timeout),
            # Any lower type is kept to the slow cores, and is slowed down many times over.
            "ProcessType": "Interactive",
            "LimitLoadToSessionType": "Aqua",
            "SoftResourceLimits": {"NumberOfFiles": 8192},
            "Umask": 0o077,
            "StandardOutPath": log,
            "StandardErrorPath": log,
        },
        sort_keys=False,
    )


def systemd_unit(program: str, arguments: Sequence[str], *, drain_timeout: float) -> str:
    """The user unit's text.

    ``program`` is an absolute path; a leading ``%h`` is the user's home and is left to systemd.
    """
    home = "%h/" if program.startswith("%h/") else ""
    words = [_word(program.removeprefix(home), home)]
    words += ["serve", *(_word(argument) for argument in arguments)]
    return _UNIT_TEMPLATE.format(command=" ".join(words), stop=stop_seconds(drain_timeout))


def stop_seconds(drain_timeout: float) -> int:
    """How long the manager waits for a stop: always longer than the drain."""
    return int(drain_timeout) + STOP_MARGIN_SECONDS


def _word(text: str, prefix: str = "") -> str:
    """One word of a command line as systemd reads it back; ``prefix`` is written as it is."""
    if any(ord(character) < 32 for character in text):
        raise ValueError(f"{text!r} has a control character, which a unit's command cannot hold")
    plain = prefix + text.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[A-Za-z0-9_@%$+=:,./~-]+", plain):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
