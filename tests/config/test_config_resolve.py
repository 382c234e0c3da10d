"""Which value counts, where it came from, and what is said about the ones that do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mlxceld.config import (
    SETTINGS,
    ConfigFileError,
    ResolvedSettings,
    Source,
    effective,
    resolve,
    value_of,
)

Resolve = Callable[..., ResolvedSettings]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home folder."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def run(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """Resolve with flags, variables and the text of a file, and nothing else of this machine."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def resolved(
        flags: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        file: str | None = None,
    ) -> ResolvedSettings:
        path = None
        if file is not None:
            path = tmp_path / "etc" / "mlxceld.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(file)
        return resolve(
            flags or {},
            environ={"HOME": str(home)} | dict(environ or {}),
            config_file=path,
            search=False,
        )

    return resolved


# name: (a flag's value, a variable's text and value, the file's text and value)
VALUES = {
    "port": (1, ("2", 2), ("3", 3)),
    "log.level": ("debug", ("warning", "warning"), ("error", "error")),
    "prompt_cache.enabled": (True, ("0", False), ("no", False)),
    "prompt_cache.ttl": (1.0, ("2m", 120.0), ("never", 0.0)),
    "prompt_cache.capacity_bytes": (1, ("1KiB", 1024), ("off", 0)),
    "alias": (("a",), ("b,c", ("b", "c")), ("[d]", ("d",))),
    "apc.trace": (False, ("1", True), ("true", True)),
    "kv_cache_budget": (5, ("1GB", 10**9), ("auto", None)),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("given", list(itertools.product((False, True), repeat=3)))
def test_flag_then_environment_then_file_then_default(
    run: Resolve, name: str, given: tuple[bool, bool, bool]
) -> None:
    flag, (env_text, env), (file_text, in_file) = VALUES[name]
    variable = SETTINGS[name].env[0]
    by_flag, by_env, by_file = given
    resolved = run(
        {name: flag} if by_flag else {},
        {variable: env_text} if by_env else {},
        f"{name}: {file_text}" if by_file else None,
    )
    candidates = [
        (by_flag, flag, Source.FLAG),
        (by_env, env, Source.ENV),
        (by_file, in_file, Source.FILE),
        (True, SETTINGS[name].default, Source.DEFAULT),
    ]
    _, value, source = next(candidate for candidate in candidates if candidate[0])
    assert value_of(resolved.settings, name) == value
    assert resolved.sources[name] is source
    assert resolved.warnings == ()
    if by_flag and by_env:
        assert resolved.notes == (f"{SETTINGS[name].flags[0]} is given, so {variable} is ignored",)
    else:
        assert resolved.notes == ()


def test_every_setting_has_a_source_and_the_others_stay_default(run: Resolve) -> None:
    resolved = run({"port": 1})
    assert list(resolved.sources) == list(SETTINGS)
    assert {name for name, source in resolved.sources.items() if source is not Source.DEFAULT} == {
        "port"
    }


@pytest.mark.parametrize("name", [name for name, row in SETTINGS.items() if not row.kind.many])
def test_a_bad_variable_is_ignored_with_a_warning_that_names_it(run: Resolve, name: str) -> None:
    for variable in SETTINGS[name].env:
        bad = "a\0b" if "path" in SETTINGS[name].kind.expected else " \0"
        resolved = run({}, {variable: bad})
        assert resolved.sources[name] is Source.DEFAULT
        (warning,) = resolved.warnings
        assert warning.startswith(f"{variable} is ignored: expected ")


def test_a_bad_variable_leaves_the_file_in_force(run: Resolve) -> None:
    resolved = run({}, {"MLXCEL_PROMPT_CACHE_TTL": "soon"}, "prompt_cache.ttl: 5m")
    assert resolved.settings.prompt_cache.ttl == 300.0
    assert resolved.warnings == (
        "MLXCEL_PROMPT_CACHE_TTL is ignored: expected a duration like 90s, 15m, 2h or a number of"
        " seconds, found 'soon'",
    )


def test_a_bad_variable_does_not_lose_to_a_flag_but_is_bad(run: Resolve) -> None:
    resolved = run({"port": 1}, {"MLXCEL_PORT": "x"})
    assert resolved.notes == ()
    assert resolved.warnings[0].startswith("MLXCEL_PORT is ignored: expected a whole number")


def test_all_bad_variables_are_named(run: Resolve) -> None:
    resolved = run({}, {"MLXCEL_PORT": "x", "MLXCEL_MAX_BODY": "y", "APC_HASH": "md5"})
    named = {warning.split()[0] for warning in resolved.warnings}
    assert named == {"MLXCEL_PORT", "MLXCEL_MAX_BODY", "APC_HASH"}
    assert len(resolved.warnings) == 3


def test_an_empty_variable_is_not_given(run: Resolve) -> None:
    resolved = run({}, {"MLXCEL_PORT": "", "MLXCEL_APC_TRACE": ""})
    assert resolved.sources["port"] is Source.DEFAULT
    assert resolved.warnings == ()


@pytest.mark.parametrize("text", ["0", "true", "yes", "on", "01", " 1", "1 ", "TRUE", "2"])
def test_the_trace_variable_counts_only_as_the_literal_one(run: Resolve, text: str) -> None:
    resolved = run({}, {"MLXCEL_APC_TRACE": text})
    assert resolved.settings.apc.trace is False
    assert resolved.warnings == (
        f"MLXCEL_APC_TRACE is ignored: expected exactly 1, found {text!r}",
    )


def test_the_trace_variable_as_one(run: Resolve) -> None:
    resolved = run({}, {"MLXCEL_APC_TRACE": "1"})
    assert resolved.settings.apc.trace is True
    assert resolved.sources["apc.trace"] is Source.ENV


def test_the_second_name_of_a_variable(run: Resolve) -> None:
    environ = {"APC_ENABLED": "off", "APC_BLOCK_SIZE": "32", "APC_HASH": "blake2b"}
    resolved = run({}, environ)
    apc = resolved.settings.apc
    assert (apc.enabled, apc.block_size, apc.hash) == (False, 32, "blake2b")
    assert resolved.sources["apc.hash"] is Source.ENV
    assert resolved.notes == ()


def test_a_variables_first_name_wins_with_a_note(run: Resolve) -> None:
    resolved = run({}, {"APC_BLOCK_SIZE": "32", "MLXCEL_APC_BLOCK_SIZE": "64"})
    assert resolved.settings.apc.block_size == 64
    assert resolved.notes == ("MLXCEL_APC_BLOCK_SIZE is given, so APC_BLOCK_SIZE is ignored",)


def test_a_bad_first_name_leaves_the_second(run: Resolve) -> None:
    resolved = run({}, {"APC_BLOCK_SIZE": "32", "MLXCEL_APC_BLOCK_SIZE": "x"})
    assert resolved.settings.apc.block_size == 32
    assert [warning.split()[0] for warning in resolved.warnings] == ["MLXCEL_APC_BLOCK_SIZE"]


def test_a_flag_names_every_variable_that_loses(run: Resolve) -> None:
    resolved = run({"apc.hash": "sha256"}, {"APC_HASH": "blake2b", "MLXCEL_APC_HASH": "blake2b"})
    assert resolved.notes == (
        "--apc-hash is given, so MLXCEL_APC_HASH is ignored",
        "--apc-hash is given, so APC_HASH is ignored",
    )


# Which file


def test_the_users_file_is_found(home: Path, run: Resolve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxceld.config.paths.sys.platform", "linux")
    file = home / ".config/mlxceld/mlxceld.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("port: 81\n")
    resolved = resolve({}, environ={"HOME": str(home)})
    assert resolved.settings.port == 81
    assert resolved.config_file == file


def test_the_variable_names_a_file(home: Path, run: Resolve, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("port: 82\n")
    resolved = resolve({}, environ={"HOME": str(home), "MLXCEL_CONFIG": str(file)})
    assert resolved.settings.port == 82
    assert resolved.config_file == file


def test_a_file_by_flag_wins_over_the_variable_with_a_note(
    home: Path, run: Resolve, tmp_path: Path
) -> None:
    (tmp_path / "work" / "mine.yaml").write_text("port: 83\n")
    environ = {"HOME": str(home), "MLXCEL_CONFIG": "/none.yaml"}
    resolved = resolve({}, environ=environ, config_file=Path("mine.yaml"))
    assert resolved.settings.port == 83
    assert resolved.config_file == tmp_path / "work" / "mine.yaml"
    assert resolved.notes == ("--config is given, so MLXCEL_CONFIG is ignored",)


@pytest.mark.parametrize("name", ["/no/such.yaml", "~no-such-user-here/mlxceld.yaml"])
def test_a_named_file_that_is_not_there_stops_the_start(home: Path, name: str) -> None:
    with pytest.raises(ConfigFileError, match="No such file or directory") as caught:
        resolve({}, environ={"HOME": str(home), "MLXCEL_CONFIG": name})
    assert caught.value.exit_code == 78
    with pytest.raises(ConfigFileError, match="No such file or directory"):
        resolve({}, environ={"HOME": str(home)}, config_file=Path(name))


def test_a_tilde_in_the_files_name_is_the_home_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    (home / "mine.yaml").write_text("port: 84\n")
    assert resolve({}, config_file=Path("~/mine.yaml")).settings.port == 84


def test_a_bad_file_stops_even_where_a_flag_would_win(run: Resolve) -> None:
    with pytest.raises(ConfigFileError, match="1:7 port: expected"):
        run({"port": 1}, {}, "port: x")


# Paths


def test_paths_of_flags_and_variables_are_relative_to_the_current_folder(
    run: Resolve, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    settings = run(
        {"state_dir": Path("s"), "warm_files": (Path("w"), Path("/abs"))},
        {"MLXCEL_API_KEYS_FILE": "keys", "MLXCEL_ADMIN_SOCKET": "a/../sock"},
    ).settings
    assert settings.state_dir == work / "s"
    assert settings.warm_files == (work / "w", Path("/abs"))
    assert settings.api_keys_file == work / "keys"
    assert settings.admin.socket == work / "a/../sock"


def test_paths_of_the_file_are_relative_to_its_folder(run: Resolve, tmp_path: Path) -> None:
    text = (
        "api_keys_file: keys\nwarm_files: [w, '/a, b']\nadmin: {token_file: t}\nstate_dir: ../s\n"
    )
    settings = run({}, {}, text).settings
    etc = tmp_path / "etc"
    assert settings.api_keys_file == etc / "keys"
    assert settings.warm_files == (etc / "w", Path("/a, b"))
    assert settings.admin.token_file == etc / "t"
    assert settings.state_dir == etc / "../s"


def test_a_relative_files_paths_are_absolute(run: Resolve, tmp_path: Path) -> None:
    """The daemon changes its folder later, and reads the file anew."""
    (tmp_path / "work" / "sub").mkdir()
    (tmp_path / "work" / "sub" / "c.yaml").write_text("api_keys_file: keys\n")
    resolved = resolve({}, environ={"HOME": "/h"}, config_file=Path("sub/c.yaml"))
    assert resolved.settings.api_keys_file == tmp_path / "work" / "sub" / "keys"
    assert resolved.config_file == tmp_path / "work" / "sub" / "c.yaml"


def test_a_model_that_is_there_is_made_absolute(run: Resolve, tmp_path: Path) -> None:
    (tmp_path / "work" / "org" / "name").mkdir(parents=True)
    (tmp_path / "work" / "demo").mkdir()
    work = tmp_path / "work"
    assert run({"model": "org/name"}).settings.model == str(work / "org/name")
    assert run({}, {"MLXCEL_MODEL": "org/name"}).settings.model == str(work / "org/name")
    assert run({"model": "demo"}).settings.model == "demo"
    # The file's folder has no such model, so it is a hub's.
    assert run({}, {}, "model: org/name").settings.model == "org/name"


@pytest.mark.parametrize("name", ["./m", "../m", "m.gguf", "sub/M.GGUF"])
def test_a_model_that_can_only_be_a_path_is_made_absolute(
    run: Resolve, tmp_path: Path, name: str
) -> None:
    assert run({"model": name}).settings.model == str(tmp_path / "work" / name)
    assert run({}, {}, f"model: {name}").settings.model == str(tmp_path / "etc" / name)


@pytest.mark.parametrize("name", ["org/name", "demo", "x" * 5000, "a b", "org/~x"])
def test_another_model_stays_as_it_is(run: Resolve, name: str) -> None:
    assert run({"model": name}).settings.model == name


def test_a_models_tilde_is_the_home_folder(
    run: Resolve, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(home))
    assert run({"model": "~/m"}).settings.model == str(home / "m")
    odd = "~no-such-user-here/m"
    assert run({"model": odd}).settings.model == str(tmp_path / "work" / odd)


# What is shown


def test_effective_shows_every_setting_with_its_source(run: Resolve) -> None:
    resolved = run(
        {"port": 1, "alias": ("a", "b")},
        {"MLXCEL_PROMPT_CACHE_TTL": "90"},
        "prompt_cache: {capacity_bytes: 3GiB}",
    )
    rows = {row.name: (row.value, row.source.value) for row in effective(resolved)}
    assert list(rows) == list(SETTINGS)
    assert all(value for value, _ in rows.values())
    assert rows["port"] == ("1", "flag")
    assert rows["alias"] == ("a,b", "flag")
    assert rows["prompt_cache.ttl"] == ("90s", "env")
    assert rows["prompt_cache.capacity_bytes"] == ("3GiB", "file")
    assert rows["max_queue"] == ("64", "default")
    assert rows["kv_cache_budget"] == ("auto", "default")
    assert rows["api_keys_file"] == ("none", "default")
    assert rows["state_dir"] == (str(resolved.settings.state_dir), "default")
