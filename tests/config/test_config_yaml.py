"""The settings file: what it may say, and how everything wrong in it is told at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mlxceld.config import SETTINGS, ConfigFileError, reference, resolve, value_of
from mlxceld.config.yamlfile import MAX_BYTES, FileError, read_file

Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the settings file; its path."""

    def write_file(content: str | bytes) -> Path:
        file = tmp_path / "mlxceld.yaml"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    return write_file


def errors_of(file: Path) -> list[str]:
    """The lines of the error, without the folder."""
    with pytest.raises(ConfigFileError) as caught:
        read_file(file)
    assert caught.value.exit_code == 78
    assert str(caught.value) == "\n".join(map(str, caught.value.errors))
    return [line.removeprefix(f"{file.parent}/") for line in str(caught.value).splitlines()]


GOLDEN = """\
model: [a, b]
port: 99999
prot: 8080
host: 127.0.0.1:8484
alias:
  - good
  - ""
  - {name: x}
  - ~
prompt_cache:
  ttl: 12:30
  capacity_bytes: 4gib
  enabled: maybe
  capacity: 4GiB
  min_prefix: 1e3
  ttl: 1h
  snapshot:
    ttl: 5
apc: off
log:
log: {level: loud}
port: 1
max_queue:
max_body: 1KB
kv-backend: paged
MLXCEL_STATE_DIR: /x
enabled: true
capacity_bytes: 1GiB
zzz: 1
drain_timeout: never
request_timeout: !!python/object/apply:os.system [id]
strict_model: !!python/name:os.system no
insecure: !mine yes
? [a, b]
: 1
~: 2
<<: {port: 3}
"""

GOLDEN_ERRORS = """\
mlxceld.yaml:1:8 model: expected text, found a list
mlxceld.yaml:2:7 port: expected a whole number from 0 to 65535, found 99999
mlxceld.yaml:3:1 prot: no such setting; did you mean port?
mlxceld.yaml:4:7 host: expected a host name or address, without a port, found '127.0.0.1:8484'
mlxceld.yaml:7:5 alias: expected text, found nothing
mlxceld.yaml:8:5 alias: expected text, found a mapping
mlxceld.yaml:9:5 alias: expected text, found nothing
mlxceld.yaml:11:8 prompt_cache.ttl: expected a duration like 90s, 15m, 2h or a number of seconds, \
found '12:30'
mlxceld.yaml:12:19 prompt_cache.capacity_bytes: expected a size like 8GiB, 500MB or a number of \
bytes, found '4gib'
mlxceld.yaml:13:12 prompt_cache.enabled: expected true or false (or yes/no, on/off, 1/0), \
found 'maybe'
mlxceld.yaml:14:3 prompt_cache.capacity: no such setting; did you mean prompt_cache.capacity_bytes?
mlxceld.yaml:15:15 prompt_cache.min_prefix: expected a whole number from 1 to 1000000000, \
found '1e3'
mlxceld.yaml:16:3 prompt_cache.ttl: given twice; the first is on line 11
mlxceld.yaml:17:3 prompt_cache.snapshot: no such setting; did you mean prompt_cache.snapshot_ttl?
mlxceld.yaml:19:6 apc: expected a mapping of settings, found 'off'; did you mean apc.enabled?
mlxceld.yaml:21:1 log: given twice; the first is on line 20
mlxceld.yaml:22:1 port: given twice; the first is on line 2
mlxceld.yaml:23:11 max_queue: expected a whole number from 1 to 1000000, found nothing
mlxceld.yaml:24:11 max_body: expected at least 1KiB, found '1KB'
mlxceld.yaml:25:1 kv-backend: no such setting; did you mean kv_backend?
mlxceld.yaml:26:1 MLXCEL_STATE_DIR: no such setting; did you mean state_dir?
mlxceld.yaml:27:1 enabled: no such setting; did you mean apc.enabled or prompt_cache.enabled?
mlxceld.yaml:28:1 capacity_bytes: no such setting; did you mean prompt_cache.capacity_bytes or \
responses.capacity_bytes?
mlxceld.yaml:29:1 zzz: no such setting
mlxceld.yaml:30:16 drain_timeout: expected a duration like 90s, 15m, 2h or a number of seconds, \
found 'never'
mlxceld.yaml:31:18 request_timeout: expected a duration like 90s, 15m, 2h or a number of seconds, \
found a list
mlxceld.yaml:32:15 strict_model: expected true or false, found 'no' with the tag \
'tag:yaml.org,2002:python/name:os.system'
mlxceld.yaml:33:11 insecure: expected true or false, found 'yes' with the tag '!mine'
mlxceld.yaml:34:3 expected a name, found a list
mlxceld.yaml:36:1 expected a name, found nothing
mlxceld.yaml:37:1 <<: no such setting; merge keys are not read
"""


def test_all_errors_are_told_at_once_in_the_order_of_the_file(write: Write) -> None:
    assert errors_of(write(GOLDEN)) == GOLDEN_ERRORS.splitlines()


def test_the_errors_in_the_document_are_what_a_reader_gets(write: Write) -> None:
    file = write(
        "model: demo\nprompt_cache:\n  capacity_bytes: 4gib\nlog: {level: debug}\nprot: 8080\n"
    )
    document = (Path(reference.__file__).parents[2] / reference.SETTINGS_DOC).read_text()
    assert "\n".join(errors_of(file)) in document


@pytest.mark.parametrize(
    "text", ["", "# only a comment\n", "---\n", "~\n", "{}\n", "log:\napc: ~\n"]
)
def test_a_file_without_settings_sets_nothing(write: Write, text: str) -> None:
    assert read_file(write(text)) == {}


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("prompt_cache: {ttl: off}", "prompt_cache.ttl", 0.0),
        ("prompt_cache: {max_entries: never}", "prompt_cache.max_entries", 0),
        ("prompt_cache.ttl: 2h", "prompt_cache.ttl", 7200.0),
        ("prompt_cache: {prefetch: off}", "prompt_cache.prefetch", "off"),
        ("prompt_cache: {prefetch: On}", "prompt_cache.prefetch", "on"),
        ("apc: {enabled: no}", "apc.enabled", False),
        ("apc: {enabled: 'no'}", "apc.enabled", False),
        ("apc: {enabled: 0}", "apc.enabled", False),
        ("apc: {trace: on}", "apc.trace", True),
        ("port: 08", "port", 8),
        ("port: 010", "port", 10),
        ("port: '8080'", "port", 8080),
        ("port: !!str 8080", "port", 8080),
        ("port: !!int '8080'", "port", 8080),
        ("model: 1e3", "model", "1e3"),
        ("model: off", "model", "off"),
        ("model: 2024-01-02", "model", "2024-01-02"),
        ("model: =", "model", "="),
        ("model: >-\n  or\n  g", "model", "or g"),
        ("alias: one", "alias", ("one",)),
        ("alias: one, two", "alias", ("one", "two")),
        ("alias: ['one, two', 3]", "alias", ("one, two", "3")),
        ("alias: []", "alias", ()),
        ("host: ::1", "host", "::1"),
        ("max_body: 1_0", None, "expected a size"),
        ("port: 0x10", None, "expected a whole number from 0 to 65535, found '0x10'"),
        ("port: 0o10", None, "found '0o10'"),
        ("port: 1e3", None, "found '1e3'"),
        ("port: 8080.0", None, "found '8080.0'"),
        ("request_timeout: 12:30", None, "found '12:30'"),
        ("model: !!binary aGk=", None, "found 'aGk=' with the tag 'tag:yaml.org,2002:binary'"),
        ("port: !!null 5", None, "found nothing"),
        ("port: ~", None, "found nothing"),
        ("alias: [[a]]", None, "expected text, found a list"),
        ("alias: {a: b}", None, "expected a list of texts, found a mapping"),
        ("alias:", None, "expected a list of texts, found nothing"),
        ("warm_files: ['']", None, "expected a path, found ''"),
        ("log: [level]", None, "log: expected a mapping of settings, found a list"),
        ("log: debug", None, "expected a mapping of settings, found 'debug'"),
        ("[port, 80]", None, "1:1 expected a mapping of settings, found a list"),
        ("port", None, "1:1 expected a mapping of settings, found 'port'"),
        ("on: 1", None, "1:1 on: no such setting"),
        ("'': 1", None, "1:1 no such setting"),
        ('"a\\nb": 1', None, r"1:1 'a\\nb': no such setting"),
        ("admin: {socket.x: 1}", None, "1:9 admin.socket.x: no such setting"),
        ("model: !!python/object:os.x {}", None, "expected text, found a mapping"),
        (f"port: {'9' * 500}", None, r"found '9{57}\.\.\.'$"),
    ],
)
def test_traps(write: Write, text: str, name: str | None, value: Any) -> None:
    file = write(text)
    if name is not None:
        found = read_file(file)
        assert found == {name: value}
        assert type(found[name]) is type(value)
    else:
        errors = errors_of(file)
        assert len(errors) == 1
        assert re.search(value, errors[0])


@pytest.mark.parametrize(
    "name", ["model", "kv_cache_budget", "state_dir", "admin.socket", "api_keys_file"]
)
def test_nothing_means_the_default_where_that_is_to_be_absent(write: Write, name: str) -> None:
    file = write(f"{name}: ~\n")
    resolved = resolve({}, environ={"HOME": "/home/u"}, config_file=file)
    default = resolve({}, environ={"HOME": "/home/u"}, search=False)
    assert value_of(resolved.settings, name) == value_of(default.settings, name)
    assert resolved.sources[name] == "default"


def test_a_dotted_and_a_nested_key_are_the_same_setting(write: Write) -> None:
    file = write("log.level: debug\nlog:\n  level: info\n  format: json\n")
    assert errors_of(file) == [
        "mlxceld.yaml:3:3 log.level: given twice; the first is on line 1",
    ]


def test_anchors_and_aliases_are_read(write: Write) -> None:
    file = write("prompt_cache:\n  ttl: &t 5m\n  snapshot_ttl: *t\ndrain_timeout: *t\n")
    assert read_file(file) == {
        "prompt_cache.ttl": 300.0,
        "prompt_cache.snapshot_ttl": 300.0,
        "drain_timeout": 300.0,
    }


def test_an_error_in_an_alias_is_told_where_it_is_used(write: Write) -> None:
    file = write(
        "model: &m demo\nport: 80\nmax_queue: *m\nalias: &a [x]\nwarm_files: *a\nlog: *m\n"
    )
    assert errors_of(file) == [
        "mlxceld.yaml:3:1 max_queue: expected a whole number from 1 to 1000000, found 'demo'",
        "mlxceld.yaml:6:1 log: expected a mapping of settings, found 'demo'",
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("&a\nlog: *a\n", r"mlxceld.yaml:2:1 log\.log: no such setting; .*"),
        (
            "log: &a {level: *a}\n",
            "mlxceld.yaml:1:10 log.level: expected one of .*, found a mapping",
        ),
        ("alias: &a [*a]\n", "mlxceld.yaml:1:8 alias: expected text, found a list"),
        ("&a [*a]\n", "mlxceld.yaml:1:1 expected a mapping of settings, found a list"),
    ],
)
def test_aliases_of_themselves_end(write: Write, text: str, error: str) -> None:
    errors = errors_of(write(text))
    assert any(re.fullmatch(error, line) for line in errors), errors


def test_many_aliases_of_aliases_are_not_expanded(write: Write) -> None:
    lines = ["alias: &a0 [x]"]
    lines += [f"x{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    assert len(errors_of(write("\n".join(lines)))) == 39


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("model: demo\n port: 1\n", "mlxceld.yaml:2:6 not valid YAML: mapping values are not"),
        ("log:\n\tlevel: info\n", r"mlxceld.yaml:2:1 not valid YAML: .*'\\t' that cannot start"),
        ("model: 'demo\n", "mlxceld.yaml:2:1 not valid YAML: while scanning a quoted scalar"),
        ("a: *nowhere\n", "mlxceld.yaml:1:4 not valid YAML: found undefined alias 'nowhere'"),
        ("a: &x 1\nb: &x 2\n", "mlxceld.yaml:2:4 not valid YAML: found duplicate anchor 'x'"),
        ("model: demo\n---\nport: 1\n", "mlxceld.yaml:2:1 not valid YAML: expected a single"),
        ("model: d\0mo\n", "mlxceld.yaml:1:9 not valid YAML: character 0x0000 is not allowed"),
        ("model: demo\nhost: \x1b[31m\n", "mlxceld.yaml:2:7 not valid YAML: character 0x001b"),
        ("%YAML 3.0\n---\nport: 1\n", "mlxceld.yaml:1:1 not valid YAML: found incompatible YAML"),
        ("port: !u!x 1\n", "mlxceld.yaml:1:7 not valid YAML: while parsing a node"),
        ("[" * 20_000, "mlxceld.yaml: not valid YAML: it is nested too deeply"),
        ("a: {" * 20_000, "mlxceld.yaml: not valid YAML: it is nested too deeply"),
    ],
)
def test_broken_yaml_is_one_line_with_its_place(write: Write, text: str, error: str) -> None:
    errors = errors_of(write(text))
    assert len(errors) == 1
    assert re.match(error, errors[0]), errors


def test_a_byte_order_mark_is_passed_over(write: Write) -> None:
    assert read_file(write(b"\xef\xbb\xbfport: 80\n")) == {"port": 80}
    assert errors_of(write(b"\xef\xbb\xbfprot: 80\n")) == [
        "mlxceld.yaml:1:1 prot: no such setting; did you mean port?"
    ]


def test_windows_line_ends_are_read(write: Write) -> None:
    assert read_file(write(b"port: 80\r\nlog:\r\n  level: debug\r\n")) == {
        "port": 80,
        "log.level": "debug",
    }


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"port: 1\nmodel: caf\xe9\n", "mlxceld.yaml:2:11 expected UTF-8 text, found byte 0xe9"),
        ("é: 1".encode() + b"\xff", "mlxceld.yaml:1:5 expected UTF-8 text, found byte 0xff"),
        ("port: 80\n".encode("utf-16"), "mlxceld.yaml:1:1 expected UTF-8 text, found byte 0xff"),
    ],
)
def test_text_that_is_not_utf8(write: Write, content: bytes, error: str) -> None:
    assert errors_of(write(content)) == [error]


def test_a_file_that_is_not_there_or_no_file(tmp_path: Path, write: Write) -> None:
    assert errors_of(tmp_path / "none.yaml") == [
        "none.yaml: cannot be read: No such file or directory"
    ]
    (tmp_path / "folder.yaml").mkdir()
    assert errors_of(tmp_path / "folder.yaml") == ["folder.yaml: cannot be read: Is a directory"]
    assert errors_of(write("") / "x") == ["x: cannot be read: Not a directory"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read(write: Write) -> None:
    file = write("port: 80\n")
    file.chmod(0)
    assert errors_of(file) == ["mlxceld.yaml: cannot be read: Permission denied"]


def test_an_endless_file_is_not_read_to_its_end(write: Write) -> None:
    assert errors_of(Path("/dev/zero")) == [
        f"/dev/zero: expected at most {MAX_BYTES} bytes, found more".removeprefix("/dev/")
    ]
    assert read_file(write("#" * (MAX_BYTES - 1) + "\n")) == {}


def test_python_tags_run_nothing(write: Write, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    file = write(f"model: !!python/object/apply:os.system ['touch {mark}']\n")
    assert errors_of(file) == ["mlxceld.yaml:1:8 model: expected text, found a list"]
    assert not mark.exists()


def test_every_setting_is_read_nested_and_dotted(write: Write) -> None:
    """A value other than the default comes back from both spellings of each key."""
    values = {name: _other(name) for name in SETTINGS}
    dotted = read_file(write(yaml.safe_dump(values)))
    nested: dict[str, Any] = {}
    for name, value in values.items():
        group, _, leaf = name.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[leaf] = value
    assert read_file(write(yaml.safe_dump(nested))) == dotted
    assert set(dotted) == set(SETTINGS)
    assert all(dotted[name] != row.default for name, row in SETTINGS.items())


@given(
    st.dictionaries(
        st.sampled_from([*SETTINGS, "prompt_cache", "apc", "log", "admin", "x", "<<"]) | st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=5) | st.just("ttl"), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=8,
    )
)
def test_any_tree_is_read_or_told_wrong(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any]
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    errors: list[FileError] = []
    values: dict[str, Any] = {}
    try:
        values = read_file(file)
    except ConfigFileError as error:
        errors = error.errors
    assert bool(errors) or set(values) <= set(SETTINGS)
    assert all(error.line and error.column for error in errors)
    assert "\n" not in "".join(map(str, errors))


def test_yaml_is_imported_only_when_a_file_is_read() -> None:
    script = (
        "import sys\n"
        "import mlxceld.config, mlxceld.config.paths, mlxceld.config.options\n"
        "mlxceld.config.resolve({}, search=False)\n"
        "heavy = {'yaml', 'pydantic', 'aiohttp', 'mlx', 'mlx_lm', 'transformers', 'asyncio',\n"
        "         'huggingface_hub', 'numpy', 'rich', 'requests'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"


def test_importing_the_settings_does_not_import_click() -> None:
    script = "import sys, mlxceld.config, mlxceld.config.paths; print('click' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout == "False\n"


def _other(name: str) -> Any:
    """A value that is not the setting's default, as it stands in YAML."""
    row = SETTINGS[name]
    if row.is_switch:
        return not row.default
    special = {
        "host": "::1",
        "admin.listen": "127.0.0.1:8485",
        "kv_cache_budget": "1GiB",
        "kv_backend": "dense",
        "log.level": "debug",
        "log.format": "json",
        "apc.hash": "blake2b",
        "prompt_cache.prefetch": "on",
    }
    if name in special:
        return special[name]
    if row.kind.many:
        return ["one", "two, three"]
    if isinstance(row.default, int | float):
        return int(row.default) + 1
    return "something"
