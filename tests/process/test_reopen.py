"""A log that is moved away while it is written to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlxceld.process.reopen import StderrFile


@pytest.fixture
def log(tmp_path: Path):
    path = tmp_path / "the.log"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    yield path, fd
    os.close(fd)


def test_a_log_that_was_moved_is_opened_anew_and_the_old_one_left(log):
    path, fd = log
    follower = StderrFile(fd)
    assert follower.path == path
    os.write(fd, b"one\n")
    assert not follower.follow()
    moved = path.rename(path.with_suffix(".0"))
    assert follower.follow()
    os.write(fd, b"two\n")
    assert (moved.read_text(), path.read_text()) == ("one\n", "two\n")
    assert path.stat().st_mode & 0o777 == 0o600
    assert not follower.follow()


def test_a_log_that_was_made_anew_by_its_rotator_is_taken(log):
    path, fd = log
    follower = StderrFile(fd)
    path.unlink()
    path.touch(0o640)
    assert follower.follow()
    os.write(fd, b"here\n")
    assert path.read_text() == "here\n"


def test_a_pipe_is_not_followed():
    reader, writer = os.pipe()
    follower = StderrFile(writer)
    assert follower.path is None
    assert not follower.follow()
    os.close(reader)
    os.close(writer)
