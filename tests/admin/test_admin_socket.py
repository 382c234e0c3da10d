"""The admin socket is private, is never taken from a live process, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxceld.admin.socket import AdminSocket, AdminSocketError
from mlxceld.config.paths import SOCKET_PATH_LIMIT
from mlxceld.config.peer import peer_pid, peer_uid


@pytest.fixture
def folder() -> Iterator[Path]:
    # pytest's own folders can be too deep for a socket's address.
    with tempfile.TemporaryDirectory(prefix="mx") as name:
        yield Path(name)


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(path))
    return client


def test_the_socket_is_private_whatever_the_umask(folder):
    previous = os.umask(0)
    try:
        with AdminSocket(folder / "new" / "admin.sock") as admin:
            assert stat.S_IMODE(admin.path.stat().st_mode) == 0o600
            assert stat.S_IMODE(admin.path.parent.stat().st_mode) == 0o700
        assert os.umask(0) == 0
    finally:
        os.umask(previous)


def test_it_listens_and_knows_its_peer(folder):
    with AdminSocket(folder / "a.sock") as admin, connect(admin.path) as client:
        accepted, _ = admin.listener.accept()
        with accepted:
            assert peer_uid(accepted) == os.getuid()
            assert peer_pid(client) == os.getpid()


def test_a_live_socket_is_refused_and_its_holder_named(folder):
    with AdminSocket(folder / "a.sock") as admin:
        with pytest.raises(AdminSocketError, match=f"process {os.getpid()} answers on"):
            AdminSocket(admin.path).bind()
        assert admin.path.exists()


def test_a_dead_socket_is_replaced(folder):
    path = folder / "a.sock"
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(path))
    left.close()
    assert path.exists()
    with AdminSocket(path), connect(path):
        pass
    assert not path.exists()


def test_what_is_no_socket_is_left_alone(folder):
    path = folder / "a.sock"
    path.write_text("precious")
    with pytest.raises(AdminSocketError, match="is not a socket"):
        AdminSocket(path).bind()
    assert path.read_text() == "precious"


def test_closing_spares_the_socket_of_a_later_daemon(folder):
    path = folder / "a.sock"
    first = AdminSocket(path)
    first.bind()
    path.unlink()
    with AdminSocket(path):
        first.close()
        with connect(path):
            pass
    first.close()


def test_a_folder_that_others_may_write_in_is_refused(folder):
    shared = folder / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(AdminSocketError, match="0777"):
        AdminSocket(shared / "a.sock").bind()
    shared.chmod(0o1777)  # the sticky bit keeps others from replacing it
    with AdminSocket(shared / "a.sock"):
        pass


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_anothers_folder_is_refused(folder):
    theirs = folder / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, 12345, -1)
    with pytest.raises(AdminSocketError, match="belongs to the user 12345"):
        AdminSocket(theirs / "a.sock").bind()


def test_a_path_that_is_too_long_is_refused_with_both_numbers(folder):
    path = folder / ("x" * SOCKET_PATH_LIMIT)
    with pytest.raises(AdminSocketError, match=rf"{len(str(path))} bytes.* {SOCKET_PATH_LIMIT}"):
        AdminSocket(path).bind()


def test_a_folder_that_cannot_be_made_is_an_admin_socket_error(folder):
    (folder / "file").write_text("")
    with pytest.raises(AdminSocketError, match="cannot use the admin socket's folder"):
        AdminSocket(folder / "file" / "a.sock").bind()


def test_anothers_link_to_a_folder_is_not_followed(folder, monkeypatch):
    target, link = folder / "target", folder / "link"
    target.mkdir(mode=0o700)
    link.symlink_to(target)
    uid = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: uid + 1)
    real = Path.lstat

    def lstat(path):
        # Whoever runs the tests, the link is a stranger's.
        found = list(real(path))
        found[stat.ST_UID] = 12345
        return os.stat_result(found)

    monkeypatch.setattr(Path, "lstat", lstat)
    with pytest.raises(AdminSocketError, match="is a symbolic link of the user 12345"):
        AdminSocket(link / "a.sock").bind()
    assert not (target / "a.sock").exists()
