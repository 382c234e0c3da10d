"""The platform's places: the settings file, the state folder, the admin socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mlxceld.config import paths, resolve

HOME = {"HOME": "/home/u"}


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxceld.config.paths.sys.platform", "linux")


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxceld.config.paths.sys.platform", "darwin")


@pytest.mark.usefixtures("linux")
def test_places_on_linux() -> None:
    assert paths.config_files(HOME) == [
        Path("/home/u/.config/mlxceld/mlxceld.yaml"),
        Path("/etc/mlxceld/mlxceld.yaml"),
    ]
    assert paths.default_state_dir(HOME) == Path("/home/u/.local/state/mlxceld")


@pytest.mark.usefixtures("linux")
def test_xdg_variables_count_only_as_absolute_paths() -> None:
    good = HOME | {"XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s"}
    assert paths.config_files(good)[0] == Path("/c/mlxceld/mlxceld.yaml")
    assert paths.default_state_dir(good) == Path("/s/mlxceld")
    for odd in ("", "relative/folder"):
        environ = HOME | {"XDG_CONFIG_HOME": odd, "XDG_STATE_HOME": odd}
        assert paths.config_files(environ) == paths.config_files(HOME)
        assert paths.default_state_dir(environ) == paths.default_state_dir(HOME)


@pytest.mark.usefixtures("macos")
def test_places_on_macos() -> None:
    environ = HOME | {"XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s"}
    assert paths.config_files(environ) == [
        Path("/home/u/Library/Application Support/mlxceld/mlxceld.yaml"),
        Path("/Library/Application Support/mlxceld/mlxceld.yaml"),
    ]
    assert paths.default_state_dir(environ) == Path("/home/u/Library/Application Support/mlxceld")


def test_systemds_folder_is_the_default_and_the_first_of_several() -> None:
    environ = HOME | {"STATE_DIRECTORY": "/var/lib/mlxceld:/var/lib/other"}
    assert paths.default_state_dir(environ) == Path("/var/lib/mlxceld")
    assert paths.default_state_dir(HOME | {"STATE_DIRECTORY": "relative"}) == (
        paths.default_state_dir(HOME)
    )


def test_a_given_state_folder_wins_over_systemds(tmp_path: Path) -> None:
    environ = HOME | {"STATE_DIRECTORY": "/var/lib/mlxceld"}
    assert resolve({}, environ=environ, search=False).settings.state_dir == Path("/var/lib/mlxceld")
    by_env = resolve({}, environ=environ | {"MLXCEL_STATE_DIR": "/s"}, search=False)
    assert by_env.settings.state_dir == Path("/s")
    file = tmp_path / "c.yaml"
    file.write_text("state_dir: /f\n")
    assert resolve({}, environ=environ, config_file=file).settings.state_dir == Path("/f")


def test_a_user_without_a_home_folder_still_gets_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert paths.default_state_dir({}).is_absolute()
    assert paths.default_state_dir({"STATE_DIRECTORY": "/s"}) == Path("/s")
    assert resolve({}, environ={"STATE_DIRECTORY": "/s"}).settings.state_dir == Path("/s")


def _settings(**environ: str):  # type: ignore[no-untyped-def]
    return resolve({}, environ=HOME | environ, search=False).settings


def test_the_socket_is_in_the_state_folder_unless_it_is_named() -> None:
    assert paths.admin_socket(_settings(MLXCEL_STATE_DIR="/s")) == Path("/s/admin.sock")
    named = _settings(MLXCEL_STATE_DIR="/s", MLXCEL_ADMIN_SOCKET="/run/a.sock")
    assert paths.admin_socket(named) == Path("/run/a.sock")


def test_a_path_that_just_fits_is_kept_and_a_longer_one_replaced() -> None:
    """Counted in bytes, and with the final NUL."""
    limit = 104 if sys.platform == "darwin" else 108
    longest = "/" + "é" * 10 + "x" * (limit - 1 - 21)
    assert len(os.fsencode(longest)) == limit - 1
    assert paths.admin_socket(_settings(MLXCEL_ADMIN_SOCKET=longest)) == Path(longest)
    short = paths.admin_socket(_settings(MLXCEL_ADMIN_SOCKET=longest + "x"))
    assert short.parent == Path(f"/tmp/mlxceld-{os.getuid()}")
    assert len(os.fsencode(short)) < 104


def test_a_kept_path_can_be_bound_and_a_replaced_one_could_not(tmp_path: Path) -> None:
    """The limit is the system's own."""
    limit = 104 if sys.platform == "darwin" else 108
    room = limit - 1 - len(os.fsencode(tmp_path)) - 1
    if room < 1:
        pytest.skip("the temporary folder's path is too long itself")
    fits = tmp_path / ("s" * room)
    assert paths.admin_socket(_settings(MLXCEL_ADMIN_SOCKET=str(fits))) == fits
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(fits))
    # One byte more has no room for its NUL.
    assert paths.admin_socket(_settings(MLXCEL_ADMIN_SOCKET=f"{fits}s")) != Path(f"{fits}s")
    with socket.socket(socket.AF_UNIX) as listener, pytest.raises(OSError, match="too long"):
        listener.bind(f"{fits}ss")


def test_different_long_paths_get_different_sockets() -> None:
    found = {paths.admin_socket(_settings(MLXCEL_STATE_DIR=f"/{'x' * 120}{n}")) for n in range(5)}
    assert len(found) == 5


def test_daemon_and_client_come_to_the_same_socket(tmp_path: Path) -> None:
    """Two processes with other current folders and other temporary folders."""
    config = tmp_path / "mlxceld.yaml"
    config.write_text(f"state_dir: {'long/' * 30}\n")
    script = (
        "import json, sys\n"
        "from mlxceld.config import paths, resolve\n"
        "print(json.dumps([str(paths.find_admin_socket()),"
        " str(paths.admin_socket(resolve({}).settings))]))"
    )
    answers = []
    for name in ("daemon", "client"):
        folder = tmp_path / name
        folder.mkdir()
        found = subprocess.run(
            [sys.executable, "-c", script],
            env={
                "HOME": str(tmp_path),
                "MLXCEL_CONFIG": str(config),
                "TMPDIR": str(folder),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        answers += json.loads(found.stdout)
    assert len(set(answers)) == 1
    assert answers[0].startswith("/tmp/mlxceld-")


def test_the_client_finds_the_socket_by_environment_and_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("admin: {socket: run/a.sock}\n")
    by_file = {"HOME": str(tmp_path), "MLXCEL_CONFIG": str(file)}
    assert paths.find_admin_socket(by_file) == tmp_path / "run/a.sock"
    by_env = by_file | {"MLXCEL_ADMIN_SOCKET": "/run/b.sock"}
    assert paths.find_admin_socket(by_env) == Path("/run/b.sock")


@pytest.mark.parametrize("content", ["port: x\n", "\0", None])
def test_a_bad_file_does_not_keep_the_client_from_a_socket(
    tmp_path: Path, content: str | None
) -> None:
    """The daemon that runs was started without it."""
    file = tmp_path / "c.yaml"
    if content is not None:
        file.write_text(content)
    environ = {"HOME": str(tmp_path), "MLXCEL_CONFIG": str(file), "MLXCEL_STATE_DIR": "/s"}
    assert paths.find_admin_socket(environ) == Path("/s/admin.sock")


@pytest.mark.usefixtures("linux")
def test_a_folder_or_a_closed_place_is_no_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".config/mlxceld/mlxceld.yaml").mkdir(parents=True)
    assert resolve({}, environ={"HOME": str(tmp_path)}).config_file is None

    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", closed)
    assert resolve({}, environ={"HOME": str(tmp_path)}).config_file is None
