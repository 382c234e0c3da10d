"""Whether a daemon answers here and to its clients, and what one that ended left behind."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from mlxceld.config import paths
from mlxctl.checks.scene import Finding, Scene
from mlxctl.holder import holder_of


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


def check_failure(scene: Scene) -> Iterator[Finding]:
    """What the last start under a manager left."""
    from mlxctl.commands.service import last_failure

    failure = last_failure() if scene.status is None else None
    if failure is not None:
        yield Finding("last start", "wrong", failure["text"], "then: mlxctl service restart")


def check_leftovers(scene: Scene) -> Iterator[Finding]:
    """A socket without a daemon, or a daemon without a socket."""
    path, lock = scene.ctl.target.socket, scene.state_dir / paths.LOCK_NAME
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
    holder = holder_of(lock)
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
