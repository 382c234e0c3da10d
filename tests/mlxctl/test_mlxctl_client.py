"""How answers and failures of the admin API reach the user."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
from pathlib import Path

import pytest
import requests

from mlxctl.client import AdminClient, Target
from mlxctl.errors import CtlError, ExitCode
from mlxctl.main import run

URL = "http://127.0.0.1:8485"


def client(url: str = URL, **kwargs) -> AdminClient:
    return AdminClient(Target(Path("unused"), url=url, **kwargs), timeout=5.0)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, ExitCode.REFUSED),
        (401, ExitCode.UNAUTHORISED),
        (403, ExitCode.UNAUTHORISED),
        (404, ExitCode.REFUSED),
        (409, ExitCode.CONFLICT),
        (500, ExitCode.REFUSED),
        (503, ExitCode.REFUSED),
        (504, ExitCode.TIMED_OUT),
    ],
)
def test_each_refusal_has_its_exit_code_and_the_daemons_words(requests_mock, status, code):
    error = {"code": "c", "message": "because", "details": {"field": "x"}}
    requests_mock.get(f"{URL}/admin/v1/status", status_code=status, json={"error": error})
    with pytest.raises(CtlError) as caught:
        client().get("status")
    assert (caught.value.exit_code, caught.value.code) == (code, "c")
    assert (caught.value.message, caught.value.details) == ("because", {"field": "x"})


@pytest.mark.parametrize("text", ["<html>", "", "[1]", '{"error": "plain"}'])
def test_an_answer_that_is_not_the_apis_is_said_to_be_none(requests_mock, text):
    requests_mock.get(f"{URL}/admin/v1/status", status_code=502, text=text)
    with pytest.raises(CtlError, match="answered 502 without the JSON"):
        client().get("status")


def test_a_redirect_is_not_followed(requests_mock):
    requests_mock.get(
        f"{URL}/admin/v1/status", status_code=302, headers={"Location": "http://elsewhere/"}
    )
    with pytest.raises(CtlError, match="answered 302"):
        client().get("status")
    assert requests_mock.call_count == 1


def test_a_timeout_and_a_lost_connection_are_told_apart(requests_mock):
    requests_mock.get(f"{URL}/admin/v1/status", exc=requests.ReadTimeout)
    with pytest.raises(CtlError, match="within 5 s") as caught:
        client().get("status")
    assert caught.value.exit_code is ExitCode.TIMED_OUT
    requests_mock.get(f"{URL}/admin/v1/status", exc=requests.ConnectionError("reset"))
    with pytest.raises(CtlError, match="reset") as caught:
        client().get("status")
    assert caught.value.exit_code is ExitCode.UNREACHABLE


def test_the_token_goes_with_every_request_and_no_proxy_is_asked(
    requests_mock, tmp_path, monkeypatch
):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:1")
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    requests_mock.put(f"{URL}/admin/v1/trace", json={"enabled": True})
    assert client(token_file=token).send("PUT", "trace", {"enabled": True}) == {"enabled": True}
    (sent,) = requests_mock.request_history
    assert sent.headers["Authorization"] == "Bearer s3cret"
    assert sent.headers["Content-Type"] == "application/json"
    assert sent.json() == {"enabled": True}
    assert not sent.proxies


@pytest.mark.parametrize("content", [b"", b"\n", b"# only a comment\n", "s\u00e9cret".encode()])
def test_a_file_that_holds_no_token_is_a_usage_error(tmp_path, content):
    token = tmp_path / "token"
    token.write_bytes(content)
    with pytest.raises(CtlError, match="holds no token") as caught:
        client(token_file=token)
    assert caught.value.exit_code is ExitCode.USAGE
    with pytest.raises(CtlError, match="cannot read the token file"):
        client(token_file=tmp_path / "absent")


@pytest.mark.parametrize("url", ["127.0.0.1:8485", "ftp://x", "http://", "http://x:99999", "http:"])
def test_a_url_that_is_none_is_a_usage_error(url):
    with pytest.raises(CtlError, match="expected one like") as caught:
        client(url)
    assert caught.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize("url", [URL, URL + "/", URL + "/admin/v1/"])
def test_the_prefix_may_be_part_of_the_url(requests_mock, url):
    requests_mock.get(f"{URL}/admin/v1/status", json={"state": "ready"})
    assert client(url).get("status") == {"state": "ready"}


@pytest.fixture
def short_folder():
    with tempfile.TemporaryDirectory(prefix="mx") as name:
        yield Path(name)


def test_a_missing_socket_is_exit_3_with_the_next_command(short_folder, capsys):
    path = short_folder / "none.sock"
    assert run(["status", "--socket", str(path)]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"there is no socket {path}" in captured.err
    assert "start one with: mlx" in captured.err


def test_a_dead_socket_is_exit_3(short_folder, capsys):
    path = short_folder / "dead.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert run(["--socket", str(path), "-o", "json", "status"]) == 3
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "unreachable"
    assert "nothing listens" in error["message"]


@pytest.mark.skipif(os.getuid() == 0, reason="root may open every socket")
def test_anothers_socket_is_exit_4(short_folder, capsys):
    path = short_folder / "a.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0)
        assert run(["--socket", str(path), "status"]) == 4


def test_a_silent_daemon_is_exit_6(short_folder, capsys):
    path = short_folder / "a.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert run(["--socket", str(path), "--timeout", "0.05", "status"]) == 6
    assert "did not answer within 0.05 s" in capsys.readouterr().err


@pytest.fixture
def listening(short_folder):
    """A socket that somebody serves, and never answers on."""
    path = short_folder / "a.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield path, listener


@pytest.mark.parametrize("named", [True, False])
def test_a_socket_that_another_user_serves_is_told_nothing(listening, capsys, monkeypatch, named):
    path, listener = listening
    monkeypatch.setattr("mlxctl.client.os.geteuid", lambda: 1000)
    monkeypatch.setattr("mlxctl.socketadapter.peer_uid", lambda _: 1001)
    monkeypatch.setattr("mlxctl.context.default_socket", lambda: path)
    arguments = ["--socket", str(path)] if named else []
    assert run([*arguments, "status"]) == 4
    assert f"{path} is served by the user 1001, and not by you or root" in capsys.readouterr().err
    accepted, _ = listener.accept()
    with accepted:
        assert accepted.recv(1) == b""


@pytest.mark.parametrize(
    ("me", "server", "named", "code"),
    [
        (1000, 1000, False, 6),
        (1000, 0, False, 6),
        (0, 0, False, 6),
        (0, 1001, False, 4),
        # Root may look at anybody's daemon, if that is what it says.
        (0, 1001, True, 6),
        (1000, None, False, 6),
    ],
)
def test_who_may_serve_the_socket(listening, monkeypatch, me, server, named, code):
    path, _ = listening
    monkeypatch.setattr("mlxctl.client.os.geteuid", lambda: me)
    monkeypatch.setattr("mlxctl.socketadapter.peer_uid", lambda _: server)
    monkeypatch.setattr("mlxctl.context.default_socket", lambda: path)
    arguments = ["--socket", str(path)] if named else []
    # Exit code 6: it was asked, and did not answer.
    assert run([*arguments, "--timeout", "0.05", "status"]) == code


@pytest.mark.parametrize("left", ["nothing", "a dead socket"])
def test_a_daemon_whose_socket_is_gone_is_named(short_folder, capsys, left):
    path = short_folder / "admin.sock"
    if left != "nothing":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    lock = short_folder / "mlxceld.pid"
    lock.write_text('{"pid": 4711, "address": "", "started_at": 1.0}\n')
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert run(["--socket", str(path), "status"]) == 3
    error = capsys.readouterr().err
    assert f"a daemon runs (pid 4711), but its socket {path} is gone" in error
    assert "binds it anew within a minute" in error
    # Without the lock the same file is only what a dead daemon left.
    assert run(["--socket", str(path), "status"]) == 3
    assert "no daemon is running" in capsys.readouterr().err


def test_the_state_folder_of_a_socket_elsewhere_is_found(short_folder, capsys, monkeypatch):
    state = short_folder / "state"
    state.mkdir()
    monkeypatch.setenv("MLXCEL_STATE_DIR", str(state))
    monkeypatch.setenv("MLXCEL_ADMIN_SOCKET", str(short_folder / "elsewhere.sock"))
    with (state / "mlxceld.pid").open("w+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert run(["status"]) == 3
    assert "a daemon runs (pid ?), but its socket" in capsys.readouterr().err
