import os

import pytest

from mlxceld.process.manager import ManagedError, refuse_under_manager, service_manager


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"NOTIFY_SOCKET": "/run/notify"}, "systemd"),
        ({"INVOCATION_ID": "abc"}, "systemd"),
        ({"INVOCATION_ID": "abc", "SYSTEMD_EXEC_PID": str(os.getpid())}, "systemd"),
        ({"INVOCATION_ID": "abc", "SYSTEMD_EXEC_PID": str(os.getppid())}, "systemd"),
        # A shell in a terminal that is itself a unit.
        ({"INVOCATION_ID": "abc", "SYSTEMD_EXEC_PID": "1"}, None),
        ({"XPC_SERVICE_NAME": "org.mlxceld.daemon"}, "launchd"),
        ({"XPC_SERVICE_NAME": "0"}, None),
        ({"XPC_SERVICE_NAME": "application.com.apple.Terminal.1152921500311879801"}, None),
    ],
)
def test_who_manages(environ: dict[str, str], expected: str | None) -> None:
    assert service_manager(environ) == expected


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"NOTIFY_SOCKET": "/run/notify"}, "systemd"),
        ({"XPC_SERVICE_NAME": "org.mlxceld.daemon"}, "launchd"),
    ],
)
def test_the_refusal_names_the_right_command(environ: dict[str, str], name: str) -> None:
    with pytest.raises(ManagedError, match=rf"^{name} .*`mlxceld serve`.*mlxctl service install"):
        refuse_under_manager(environ)


def test_nobody_manages_nobody_refuses() -> None:
    refuse_under_manager({})
