"""The settings as flags: what a command takes, what its help shows, what it refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from mlxceld.config import SETTINGS, ResolvedSettings, Source, value_of
from mlxceld.config.options import SettingsCommand, resolve_from_click, settings_options


class Program:
    """A small command with the settings as its flags, run in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.resolved: ResolvedSettings | None = None
        self._environ = {"HOME": str(folder)}

        @click.command(cls=SettingsCommand)
        @settings_options
        @click.option("--own", is_flag=True, help="The command's own.")
        def serve(own: bool, **params: Any) -> None:
            """Serve."""
            environ = {"MLXCEL_STATE_DIR": str(folder)} | self._environ
            self.resolved = resolve_from_click(params, environ=environ)

        self.command = serve

    def run(self, *args: str, environ: Mapping[str, str] | None = None) -> Result:
        self.resolved = None
        self._environ |= environ or {}
        return CliRunner().invoke(self.command, args)

    def values(self, *args: str) -> dict[str, Any]:
        """The settings that the flags gave."""
        result = self.run(*args)
        assert result.exit_code == 0, result.output
        assert self.resolved is not None
        return {
            name: value_of(self.resolved.settings, name)
            for name, source in self.resolved.sources.items()
            if source is Source.FLAG
        }


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.chdir(tmp_path)
    return Program(tmp_path)


def spellings() -> list[tuple[str, str]]:
    return [
        (row.name, part)
        for row in SETTINGS.values()
        for flag in row.flags
        for part in flag.split("/")
    ]


def test_without_flags_nothing_comes_from_flags(program: Program) -> None:
    assert program.values() == {}


def test_the_help_shows_every_flag_its_variables_and_default(program: Program) -> None:
    result = program.run("--help")
    assert result.exit_code == 0
    words = " ".join(result.output.split())
    for name, spelling in spellings():
        assert re.search(rf"(?<![\w-]){spelling}(?![\w-])", words), name
    for row in SETTINGS.values():
        note = f"[env: {', '.join(row.env)}; default: {row.default_text()}]"
        assert note in words, row.name
        assert row.help in words, row.name
    assert "[env: MLXCEL_CONFIG]" in words
    assert "--prompt-cache-enabled [BOOL]" in words


def test_the_help_groups_the_settings(program: Program) -> None:
    output = program.run("--help").output
    heads = re.findall(r"^(\S.*):$", output, re.MULTILINE)
    assert heads == ["Options", *dict.fromkeys(row.spec.section for row in SETTINGS.values())]
    sections = re.split(r"^\S.*:$", output, flags=re.MULTILINE)[1:]
    assert "--own" in sections[0]
    assert "--config" in sections[0]
    assert "--help" in sections[0]
    for row in SETTINGS.values():
        section = sections[heads.index(row.spec.section)]
        assert row.flags[0].split("/")[0] in section, row.name


@pytest.mark.parametrize("name", [name for name, row in SETTINGS.items() if row.is_switch])
def test_switches_are_pairs(program: Program, name: str) -> None:
    on, off = SETTINGS[name].flags[0].split("/")
    assert off == f"--no-{on[2:]}"
    assert program.values(on) == {name: True}
    assert program.values(off) == {name: False}
    assert program.values(on, off) == {name: False}
    assert program.run(f"{on}=yes").exit_code == 2


@pytest.mark.parametrize(
    ("flag", "name"),
    [("--prompt-cache-enabled", "prompt_cache.enabled"), ("--apc-enabled", "apc.enabled")],
)
@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["{}"], True),
        (["{}=true"], True),
        (["{}=ON"], True),
        (["{}=false"], False),
        (["{}=0"], False),
        (["{}", "no"], False),
        (["{}", "--port=1"], True),
        (["{}=true", "{}=false"], False),
    ],
)
def test_aliases_take_an_optional_value(
    program: Program, flag: str, name: str, words: Sequence[str], value: bool
) -> None:
    assert program.values(*(word.format(flag) for word in words))[name] is value


def test_two_flags_of_one_setting_may_agree_but_not_contradict(program: Program) -> None:
    assert program.values("--no-apc", "--apc-enabled=off") == {"apc.enabled": False}
    result = program.run("--apc", "--apc-enabled=off")
    assert result.exit_code == 2
    assert "--apc/--no-apc and --apc-enabled say different things" in result.output


@pytest.mark.parametrize("name", [name for name, row in SETTINGS.items() if not row.is_switch])
def test_every_flag_with_a_value_refuses_bad_text_as_usage(program: Program, name: str) -> None:
    flag = SETTINGS[name].flags[0].split("/")[0]
    for words in ([flag], [flag, ""]):
        result = program.run(*words)
        assert result.exit_code == 2, result.output
        assert flag in result.output
        assert program.resolved is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--port", "99999"], "'--port': expected a whole number from 0 to 65535, found 99999"),
        (["--max-body=4gib"], "'--max-body': expected a size like 8GiB, 500MB"),
        (["--drain-timeout", "never"], "'--drain-timeout': expected a duration like 90s"),
        (["--apc-hash", "md5"], "'--apc-hash': expected one of sha256, blake2b, found 'md5'"),
        (["--apc-enabled=maybe"], "'--apc-enabled': expected true or false"),
        (["--prompt-cache-tll", "1"], "No such option"),
        (["extra"], "unexpected extra argument"),
    ],
)
def test_a_bad_flag_is_a_usage_error(program: Program, words: list[str], expected: str) -> None:
    result = program.run(*words)
    assert result.exit_code == 2
    assert expected in " ".join(result.output.split())


def test_flags_with_values(program: Program, tmp_path: Path) -> None:
    assert program.values(
        *("-m", "demo", "--prompt-cache-ttl", "2h", "--prompt-cache-capacity-bytes=4GiB"),
        *("--prompt-cache-max-entries", "off", "--kv-cache-budget", "auto", "--own"),
        *("--state-dir", "s", "--admin-listen", "[::1]:1"),
    ) == {
        "model": "demo",
        "prompt_cache.ttl": 7200.0,
        "prompt_cache.capacity_bytes": 2**32,
        "prompt_cache.max_entries": 0,
        "kv_cache_budget": None,
        "state_dir": tmp_path / "s",
        "admin.listen": "[::1]:1",
    }


def test_repeated_flags_are_a_list_of_whole_values(program: Program, tmp_path: Path) -> None:
    assert program.values(
        "--alias", "a,b", "--alias", "c", "--warm-files", "x, y", "--warm-files", "/z"
    ) == {
        "alias": ("a,b", "c"),
        "warm_files": (tmp_path / "x, y", Path("/z")),
    }


def test_flags_win_over_the_environment_and_the_file(program: Program, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("port: 3\nmax_queue: 3\nmax_batch_size: 3\n")
    result = program.run(
        *("--config", "c.yaml", "--port", "1"),
        environ={"MLXCEL_PORT": "2", "MLXCEL_MAX_QUEUE": "2"},
    )
    assert result.exit_code == 0
    resolved = program.resolved
    assert resolved is not None
    settings = resolved.settings
    assert (settings.port, settings.max_queue, settings.max_batch_size) == (1, 2, 3)
    assert resolved.notes == ("--port is given, so MLXCEL_PORT is ignored",)
    assert resolved.config_file == tmp_path / "c.yaml"


def test_click_itself_reads_no_variable(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a bad variable would be a usage error."""
    for row in SETTINGS.values():
        for variable in row.env:
            monkeypatch.setenv(variable, "\x01bad")
    monkeypatch.setenv("SERVE_PORT", "1")
    assert program.values() == {}
