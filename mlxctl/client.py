"""The admin API as mlxctl calls it, with every failure turned into a CtlError."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxctl.errors import CtlError, ExitCode
from mlxctl.starting import start_hint

if TYPE_CHECKING:
    import requests

PREFIX = "/admin/v1"

VERSION_HEADER = "X-Mlxceld-Version"

_SSE = "text/event-stream"

_SILENCE_SECONDS = 60.0
"""Without a word for so long a stream is dead: the daemon says something every 15 seconds."""

_EXIT_CODES = {
    401: ExitCode.UNAUTHORISED,
    403: ExitCode.UNAUTHORISED,
    408: ExitCode.TIMED_OUT,
    409: ExitCode.CONFLICT,
    412: ExitCode.CONFLICT,
    504: ExitCode.TIMED_OUT,
}


_HINTS = {
    401: "give the file of admin.token_file with: mlxctl --token-file FILE ...",
    501: "update the daemon; its version is shown by: mlxctl status",
    503: "see what it is at with: mlxctl status",
    504: "the engine may be in a long step; see: mlxctl requests list",
}
"""The next command to try, by the status of the refusal."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the daemon's admin API is: a Unix socket, or a URL when one is given.

    ``named`` says that the caller chose it.
    """

    socket: Path
    url: str | None = None
    token_file: Path | None = None
    named: bool = False

    @property
    def name(self) -> str:
        """The target as messages call it."""
        return self.url or str(self.socket)


class AdminClient:
    """Sends requests to one daemon. ``timeout`` bounds each of them, in seconds."""

    def __init__(
        self, target: Target, timeout: float, warn: Callable[[str], None] | None = None
    ) -> None:
        """``warn`` is told, once, that the daemon is of another version."""
        import requests

        self._warn = warn

        self._target = target
        self._timeout = timeout
        self._session = requests.Session()
        # Neither a proxy nor a netrc has any business between this and the daemon.
        self._session.trust_env = False
        if target.url is None:
            from mlxctl.socketadapter import UnixSocketAdapter

            self._base = "http://localhost"
            self._session.mount(
                self._base, UnixSocketAdapter(target.socket, _trusted(named=target.named))
            )
        else:
            self._base = _checked_url(target.url)
        if target.token_file is not None:
            self._session.headers["Authorization"] = f"Bearer {_read_token(target.token_file)}"

    def get(self, path: str, **query: int | str) -> Any:
        """The JSON of a GET."""
        return self._send("GET", path, params=query)

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON that a change answers with."""
        return self._send(method, path, json={} if body is None else body)

    def events(self, path: str, **query: int | str) -> Iterator[tuple[str, Any]]:
        """The server-sent events of a GET as they come, each its name and its JSON.

        Ends with the daemon's side of the stream; a daemon that goes silent is unreachable.
        """
        import requests

        response = self._response("GET", path, params=query, stream=True, silence=True)
        with response:
            if not response.ok or response.headers.get("Content-Type", "").split(";")[0] != _SSE:
                self._read(response)
            name = ""
            try:
                for line in response.iter_lines(chunk_size=None):
                    field, _, value = line.decode("utf-8", "replace").partition(": ")
                    if field == "event":
                        name = value
                    elif field == "data":
                        yield name or "message", json.loads(value)
                        name = ""
            except requests.RequestException as error:
                raise self._unreachable(error) from error

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _send(self, method: str, path: str, **kwargs: Any) -> Any:
        return self._read(self._response(method, path, **kwargs))

    def _response(
        self, method: str, path: str, *, silence: bool = False, **kwargs: Any
    ) -> requests.Response:
        """An answer of any status; ``silence`` is what a stream may keep between its events."""
        import requests

        url = f"{self._base}{PREFIX}/{path}"
        limit = (self._timeout, max(self._timeout, _SILENCE_SECONDS)) if silence else self._timeout
        try:
            # A redirect would carry the token to wherever it points.
            response = self._session.request(
                method, url, timeout=limit, allow_redirects=False, **kwargs
            )
        except requests.Timeout:
            raise CtlError(
                "timed_out",
                f"the daemon at {self._target.name} did not answer within {self._timeout:g} s",
                ExitCode.TIMED_OUT,
                hint="give it longer with: mlxctl --timeout SECONDS ...",
            ) from None
        except requests.RequestException as error:
            raise self._unreachable(error) from error
        self._compare_versions(response)
        return response

    def _compare_versions(self, response: requests.Response) -> None:
        """Say once that the daemon is of another version, whose answers may read otherwise."""
        theirs = response.headers.get(VERSION_HEADER)
        if theirs is None or self._warn is None:
            return
        from mlxceld import __version__

        if theirs != __version__:
            self._warn(
                f"mlxctl: warning: this is version {__version__}, and the daemon is {theirs};"
                " restart it, or update mlxctl"
            )
        self._warn = None

    def _read(self, response: requests.Response) -> Any:
        try:
            value = response.json()
        except ValueError:
            value = None
        if response.ok and response.status_code < 300 and value is not None:
            return value
        error = value.get("error") if isinstance(value, dict) else None
        if not isinstance(error, dict):
            raise CtlError(
                "not_an_admin_api",
                f"{self._target.name} answered {response.status_code} without the JSON of an"
                " mlxceld admin API",
                _EXIT_CODES.get(response.status_code, ExitCode.REFUSED),
            )
        raise CtlError(
            str(error.get("code", "error")),
            str(error.get("message", response.reason)),
            _EXIT_CODES.get(response.status_code, ExitCode.REFUSED),
            details=error.get("details") or {},
            hint=_HINTS.get(response.status_code, ""),
        )

    def _unreachable(self, error: Exception) -> CtlError:
        cause = _os_error(error)
        number = cause.errno if cause is not None else None
        name = self._target.name
        if cause is not None and (uid := getattr(cause, "uid", None)) is not None:
            return CtlError(
                "not_authorised",
                f"{name} is served by the user {uid}, and not by you or root: nothing was sent",
                ExitCode.UNAUTHORISED,
            )
        if number in (errno.EACCES, errno.EPERM):
            return CtlError(
                "not_authorised",
                f"you may not open {name}: the daemon belongs to another user",
                ExitCode.UNAUTHORISED,
            )
        holder = self._holder() if number in (errno.ENOENT, errno.ECONNREFUSED) else None
        if holder is not None:
            return CtlError(
                "unreachable",
                f"a daemon runs (pid {holder or '?'}), but its socket {name} is gone; it binds it"
                " anew within a minute",
                ExitCode.UNREACHABLE,
                hint="try again then",
            )
        if number == errno.ENOENT:
            message = f"no daemon is running: there is no socket {name}"
        elif number == errno.ECONNREFUSED:
            message = f"no daemon is running: nothing listens on {name}"
        else:
            message = f"cannot reach the daemon at {name}: {cause or error}"
        return CtlError(
            "unreachable", message, ExitCode.UNREACHABLE, hint=start_hint(named=self._target.named)
        )

    def _holder(self) -> int | None:
        """The process that works in the state folder to which the socket belongs."""
        if self._target.url is not None:
            return None
        from mlxceld.config import paths
        from mlxctl.holder import holder_of

        folders = [self._target.socket.parent]
        if not self._target.named:
            folders.append(paths.find_settings().state_dir)
        found = (holder_of(folder / paths.LOCK_NAME) for folder in folders)
        return next((pid for pid in found if pid is not None), None)


def _trusted(*, named: bool) -> frozenset[int] | None:
    """Who may serve the socket: this user and root. Root may look at anyone's that it names."""
    uid = os.geteuid()
    return None if uid == 0 and named else frozenset({uid, 0})


def _os_error(error: BaseException) -> OSError | None:
    """The system's own error under what requests and urllib3 wrapped around it."""
    found: OSError | None = None
    step: BaseException | None = error
    while step is not None:
        # The wrappers are OSErrors too, without a number.
        if isinstance(step, OSError) and step.errno is not None:
            found = step
        step = step.__cause__ or step.__context__
    return found


def _checked_url(url: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise CtlError(
            "usage",
            f"the admin URL is {url!r}, expected one like http://127.0.0.1:8485",
            ExitCode.USAGE,
        )
    return url.rstrip("/").removesuffix(PREFIX)


def _read_token(path: Path) -> str:
    """The first token of a file, which may be the daemon's own with several and comments."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise CtlError(
            "token_file", f"cannot read the token file {path}: {error.strerror}", ExitCode.USAGE
        ) from error
    except UnicodeDecodeError:
        text = ""
    lines = (line.strip() for line in text.splitlines())
    token = next((line for line in lines if line and not line.startswith("#")), "")
    if not token or not token.isprintable():
        raise CtlError(
            "token_file",
            f"the token file {path} holds no token: one line of printable ASCII was expected",
            ExitCode.USAGE,
        )
    return token
