"""The options of ``serve`` that another program keeps: checked, and true from any folder."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from mlxceld.config import ConfigFileError
from mlxceld.config.commandline import check_arguments

HERE = Path("/somewhere")


def absolute(*arguments: str, folder: Path = HERE) -> list[str]:
    return check_arguments(arguments, environ={}, folder=folder)[0]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--model", "./m"], ["--model", "/somewhere/m"]),
        (["-m", "../m.gguf"], ["-m", "/somewhere/../m.gguf"]),
        (["-m./m"], ["-m/somewhere/m"]),
        (["--model=./m"], ["--model=/somewhere/m"]),
        (["--model", "demo"], ["--model", "demo"]),
        (["--model", "org/name"], ["--model", "org/name"]),
        (["--api-keys-file", "keys"], ["--api-keys-file", "/somewhere/keys"]),
        (["--api-keys-file=keys"], ["--api-keys-file=/somewhere/keys"]),
        (
            ["--warm-files", "a", "--warm-files", "/b"],
            ["--warm-files", "/somewhere/a", "--warm-files", "/b"],
        ),
        (["--state-dir", "/s"], ["--state-dir", "/s"]),
        (["--alias", "./m"], ["--alias", "./m"]),
        (["--no-apc", "--port", "9"], ["--no-apc", "--port", "9"]),
    ],
)
def test_paths_become_absolute_and_nothing_else_changes(given, kept):
    assert absolute(*given) == kept


def test_a_model_that_is_a_folder_here_becomes_absolute(tmp_path):
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert absolute("-m", "org/name", folder=tmp_path) == ["-m", str(tmp_path / "org/name")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--modle", "x"], "--modle"),
        (["--port", "many"], "65535, found .many"),
        (["stray"], "stray"),
        (["--prompt-cache", "--prompt-cache-enabled=false"], "different things"),
        (["--help"], "--help"),
    ],
)
def test_what_serve_would_not_take_is_refused(given, said):
    with pytest.raises(click.UsageError, match=said):
        absolute(*given)


def test_the_file_is_read_as_the_daemon_would_read_it(tmp_path):
    (tmp_path / "c.yaml").write_text("drain_timeout: 90s\n")
    kept, resolved = check_arguments(["--config", "c.yaml"], environ={}, folder=tmp_path)
    assert kept == ["--config", str(tmp_path / "c.yaml")]
    assert resolved.settings.drain_timeout == 90
    (tmp_path / "c.yaml").write_text("prot: 1\n")
    with pytest.raises(ConfigFileError):
        check_arguments(["--config", "c.yaml"], environ={}, folder=tmp_path)
