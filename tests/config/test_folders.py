"""Folders and files that no other user may have a hand in."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mlxceld.config.folders import FolderError, open_own, private_folder

STRANGER = frozenset({12345})
"""A set of owners in which nobody is who owns a test's folders."""


def test_missing_folders_are_made_private_whatever_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        assert private_folder(tmp_path / "a" / "b" / "c") == 0o700
    finally:
        os.umask(previous)
    for name in ("a", "a/b", "a/b/c"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707, 0o1777])
def test_a_folder_that_others_may_write_in(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(FolderError, match=f"written in by others .mode {mode:04o}"):
        private_folder(tmp_path)


def test_the_sticky_bit_is_enough_where_names_cannot_be_taken(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    assert private_folder(tmp_path, sticky=True) == 0o1777
    # A folder below one, as in /tmp.
    assert private_folder(tmp_path / "mine") == 0o700


def test_a_folder_of_another_user(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=f"belongs to the user {os.getuid()}"):
        private_folder(tmp_path, trusted=STRANGER)


def test_a_link_of_another_user(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir(mode=0o700)
    link.symlink_to(target)
    assert private_folder(link) == 0o700
    with pytest.raises(FolderError, match="symbolic link of the user"):
        private_folder(link, trusted=STRANGER)


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        private_folder(link)
    assert not (tmp_path / "nowhere").exists()


def test_a_file_in_the_folders_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        private_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        private_folder(tmp_path / "file" / "below")


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_TRUNC])
def test_a_link_is_not_followed(tmp_path: Path, flags: int) -> None:
    victim, link = tmp_path / "victim", tmp_path / "link"
    victim.write_text("precious")
    link.symlink_to(victim)
    with pytest.raises(OSError, match="link is a symbolic link"):
        open_own(link, flags)
    assert victim.read_text() == "precious"


def test_a_pipe_is_no_file_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_own(tmp_path / "pipe", os.O_RDWR)


def test_a_file_is_made_private(tmp_path: Path) -> None:
    os.close(open_own(tmp_path / "file", os.O_RDWR | os.O_CREAT))
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) & 0o077 == 0
