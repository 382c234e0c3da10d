"""Folders and files of the daemon's own, which no other user may have a hand in."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path


class FolderError(Exception):
    """Another user could get at what is in a folder; the text says how, and begins with a verb."""


def private_folder(
    folder: Path, *, sticky: bool = False, trusted: Collection[int] | None = None
) -> int:
    """Make sure that a folder is this user's alone to write in, and return its mode.

    Missing folders on the way are made with mode 0700. With ``sticky`` others may add files to it
    where the sticky bit keeps them from replacing any. ``trusted`` are the user ids that may own
    it, and the link that it may be reached by: by default this user's and root's. Raises
    FolderError, or OSError if it cannot be made or looked at.
    """
    owners = {os.geteuid(), 0} if trusted is None else trusted
    _make(folder)
    link = folder.lstat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in owners:
        raise FolderError(f"is a symbolic link of the user {link.st_uid}")
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "not a folder", os.fspath(folder))
    if found.st_uid not in owners:
        raise FolderError(f"belongs to the user {found.st_uid}")
    mode = stat.S_IMODE(found.st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH) and not (sticky and mode & stat.S_ISVTX):
        raise FolderError(f"may be written in by others (mode {mode:04o}): chmod it to 0700")
    return mode


def open_own(path: Path, flags: int) -> int:
    """Open, or with O_CREAT make (0600), a regular file; a symbolic link is not followed.

    Returns its descriptor. Raises OSError.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            text = f"{path.name} is a symbolic link, which is not followed: remove it"
            raise OSError(error.errno, text) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, f"{path.name} is not a regular file: remove it")
    return fd


def _make(folder: Path) -> None:
    missing = []
    for step in (folder, *folder.parents):
        if step.is_symlink() or step.exists():
            break
        missing.append(step)
    for step in reversed(missing):
        # One by one: mkdir's own parents=True would make those by the umask alone.
        step.mkdir(mode=0o700, exist_ok=True)
