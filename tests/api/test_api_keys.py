"""The file of API keys."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from mlxceld.api.keys import ApiKeys, KeyFileError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# for the house\nlaptop: sk-one\n\n  phone :  sk:two  \n")
    path.chmod(0o600)
    return path


def test_several_keys_are_valid_at_once(file: Path) -> None:
    keys = ApiKeys(file)
    assert keys.required
    assert keys.names == ("laptop", "phone")
    assert keys.name_of(b"sk-one") == "laptop"
    assert keys.name_of(b"sk:two") == "phone"
    for wrong in (b"", b"sk-on", b"sk-one ", b"SK-ONE", b"\xff\xfe", "schlüssel".encode()):
        assert keys.name_of(wrong) is None


def test_without_a_file_no_key_is_needed() -> None:
    assert not ApiKeys.none().required
    assert ApiKeys.none().name_of(b"") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("laptop sk-one", ":1: expected 'name: key'"),
        ("ok: sk-0\nlaptop:", ":2: expected 'name: key'"),
        ("my laptop: sk-one", ":1: the name 'my laptop' may hold"),
        ("laptop: schlüssel", ":1: the key of 'laptop' must be printable ASCII"),
        ("laptop: two words", ":1: the key of 'laptop' must be printable ASCII"),
        ("a: sk-one\na: sk-two", ":2: the name 'a' is there twice"),
        ("a: sk-one\nb: sk-one", ":2: the key of 'b' is another name's too"),
        ("# nothing\n", "holds no key"),
    ],
)
def test_a_bad_file_is_refused_without_telling_a_key(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(KeyFileError) as refused:
        ApiKeys(path)
    assert str(refused.value).startswith(str(path))
    assert message in str(refused.value)
    assert "sk-one" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"gone: cannot be read: No such file"):
        ApiKeys(tmp_path / "gone")
    (tmp_path / "binary").write_bytes(b"a: \xff\xfe")
    with pytest.raises(KeyFileError, match="binary: is not UTF-8"):
        ApiKeys(tmp_path / "binary")


def test_reload_takes_a_good_file_and_leaves_a_bad_one(file: Path) -> None:
    keys = ApiKeys(file)
    file.write_text("laptop: sk-new\n")
    keys.reload()
    assert keys.name_of(b"sk-new") == "laptop"
    assert keys.name_of(b"sk-one") is None
    file.write_text("nonsense")
    with pytest.raises(KeyFileError):
        keys.reload()
    assert keys.name_of(b"sk-new") == "laptop"


def test_a_file_that_others_may_read_is_warned_about(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ApiKeys(file)
        assert not caplog.records
        file.chmod(0o644)
        ApiKeys(file)
    assert "chmod 600" in caplog.text
