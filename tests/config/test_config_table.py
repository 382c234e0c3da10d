"""The table of settings against its public names: flags, variables, keys, files, documents."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import yaml

from mlxceld.config import SETTINGS, Settings, reference, resolve, value_of
from mlxceld.config.resolve import CONFIG_ENV
from mlxceld.config.yamlfile import read_file

ROOT = Path(reference.__file__).parents[2]
MIB = 2**20

# name: (flags, variables, default). What users' scripts rely on, written out by hand.
PUBLIC = {
    "model": ("--model/-m", "MLXCEL_MODEL", None),
    "alias": ("--alias", "MLXCEL_ALIAS", ()),
    "strict_model": ("--strict-model/--no-strict-model", "MLXCEL_STRICT_MODEL", False),
    "host": ("--host", "MLXCEL_HOST", "127.0.0.1"),
    "port": ("--port", "MLXCEL_PORT", 8484),
    "insecure": ("--insecure/--no-insecure", "MLXCEL_INSECURE", False),
    "admin.socket": ("--admin-socket", "MLXCEL_ADMIN_SOCKET", None),
    "admin.listen": ("--admin-listen", "MLXCEL_ADMIN_LISTEN", None),
    "admin.token_file": ("--admin-token-file", "MLXCEL_ADMIN_TOKEN_FILE", None),
    "api_keys_file": ("--api-keys-file", "MLXCEL_API_KEYS_FILE", None),
    "state_dir": ("--state-dir", "MLXCEL_STATE_DIR", Path()),
    "max_batch_size": ("--max-batch-size", "MLXCEL_MAX_BATCH_SIZE", 8),
    "max_queue": ("--max-queue", "MLXCEL_MAX_QUEUE", 64),
    "prefill_chunk": ("--prefill-chunk", "MLXCEL_PREFILL_CHUNK", 512),
    "kv_backend": ("--kv-backend", "MLXCEL_KV_BACKEND", "paged"),
    "request_timeout": ("--request-timeout", "MLXCEL_REQUEST_TIMEOUT", 600.0),
    "reasoning_alias": (
        "--reasoning-alias/--no-reasoning-alias",
        "MLXCEL_REASONING_ALIAS",
        True,
    ),
    "drain_timeout": ("--drain-timeout", "MLXCEL_DRAIN_TIMEOUT", 30.0),
    "max_body": ("--max-body", "MLXCEL_MAX_BODY", 32 * MIB),
    "log.level": ("--log-level", "MLXCEL_LOG_LEVEL", "info"),
    "log.format": ("--log-format", "MLXCEL_LOG_FORMAT", "auto"),
    "cors_origins": ("--cors-origins", "MLXCEL_CORS_ORIGINS", ()),
    "allowed_hosts": ("--allowed-hosts", "MLXCEL_ALLOWED_HOSTS", ()),
    "warm_files": ("--warm-files", "MLXCEL_WARM_FILES", ()),
    "volatile_heads": ("--volatile-heads/--no-volatile-heads", "MLXCEL_VOLATILE_HEADS", True),
    "special_tokens_in_text": (
        "--special-tokens-in-text/--no-special-tokens-in-text",
        "MLXCEL_SPECIAL_TOKENS_IN_TEXT",
        False,
    ),
    "responses.capacity_bytes": (
        "--responses-capacity-bytes",
        "MLXCEL_RESPONSES_CAPACITY_BYTES",
        64 * MIB,
    ),
    "kv_cache_budget": ("--kv-cache-budget", "MLXCEL_KV_CACHE_BUDGET", None),
    "prompt_cache.enabled": (
        "--prompt-cache/--no-prompt-cache --prompt-cache-enabled",
        "MLXCEL_PROMPT_CACHE_ENABLED",
        True,
    ),
    "prompt_cache.capacity_bytes": (
        "--prompt-cache-capacity-bytes",
        "MLXCEL_PROMPT_CACHE_CAPACITY_BYTES",
        2147483648,
    ),
    "prompt_cache.max_entries": (
        "--prompt-cache-max-entries",
        "MLXCEL_PROMPT_CACHE_MAX_ENTRIES",
        1024,
    ),
    "prompt_cache.ttl": ("--prompt-cache-ttl", "MLXCEL_PROMPT_CACHE_TTL", 3600.0),
    "prompt_cache.min_prefix": (
        "--prompt-cache-min-prefix",
        "MLXCEL_PROMPT_CACHE_MIN_PREFIX",
        32,
    ),
    "prompt_cache.snapshot_capacity_bytes": (
        "--prompt-cache-snapshot-capacity-bytes",
        "MLXCEL_PROMPT_CACHE_SNAPSHOT_CAPACITY_BYTES",
        536870912,
    ),
    "prompt_cache.snapshot_max_entries": (
        "--prompt-cache-snapshot-max-entries",
        "MLXCEL_PROMPT_CACHE_SNAPSHOT_MAX_ENTRIES",
        4096,
    ),
    "prompt_cache.snapshot_ttl": (
        "--prompt-cache-snapshot-ttl",
        "MLXCEL_PROMPT_CACHE_SNAPSHOT_TTL",
        7200.0,
    ),
    "prompt_cache.prefetch": (
        "--prompt-cache-prefetch",
        "MLXCEL_PROMPT_CACHE_PREFETCH",
        "auto",
    ),
    "apc.enabled": (
        "--apc/--no-apc --apc-enabled",
        "MLXCEL_APC_ENABLED APC_ENABLED",
        True,
    ),
    "apc.block_size": ("--apc-block-size", "MLXCEL_APC_BLOCK_SIZE APC_BLOCK_SIZE", 16),
    "apc.hash": ("--apc-hash", "MLXCEL_APC_HASH APC_HASH", "sha256"),
    "apc.trace": ("--apc-trace/--no-apc-trace", "MLXCEL_APC_TRACE", False),
}


def test_the_table_has_exactly_the_public_names() -> None:
    assert {
        name: (" ".join(row.flags), " ".join(row.env), row.default)
        for name, row in SETTINGS.items()
    } == PUBLIC


def test_defaults_are_what_a_bare_start_gets() -> None:
    settings = resolve({}, environ={"HOME": "/home/u"}, search=False).settings
    for name, (_, _, default) in PUBLIC.items():
        if name != "state_dir":
            assert value_of(settings, name) == default, name
            assert type(value_of(settings, name)) is type(default), name


def test_no_flag_and_no_variable_belongs_to_two_settings() -> None:
    flags = [part for row in SETTINGS.values() for flag in row.flags for part in flag.split("/")]
    variables = [name for row in SETTINGS.values() for name in row.env] + [CONFIG_ENV]
    assert len(flags) == len(set(flags))
    assert len(variables) == len(set(variables))


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().apc.trace = True  # type: ignore[misc]


def test_every_setting_says_what_it_is() -> None:
    for row in SETTINGS.values():
        assert row.spec.help.rstrip().endswith("."), row.name
        assert row.spec.section, row.name
        assert row.kind.expected, row.name
        assert row.default_text(), row.name


def test_what_a_reload_may_change() -> None:
    assert {name for name, row in SETTINGS.items() if row.spec.live} == {
        "admin.token_file",
        "api_keys_file",
        "log.level",
        "prompt_cache.capacity_bytes",
        "prompt_cache.max_entries",
        "prompt_cache.ttl",
        "prompt_cache.snapshot_capacity_bytes",
        "prompt_cache.snapshot_max_entries",
        "prompt_cache.snapshot_ttl",
    }


def test_snapshot_flags_carry_the_sizing_rule() -> None:
    for name in ("snapshot_capacity_bytes", "snapshot_max_entries", "snapshot_ttl"):
        text = SETTINGS[f"prompt_cache.{name}"].spec.help
        assert "snapshot_bytes after one turn" in text


@pytest.mark.parametrize(
    ("path", "text"),
    [pytest.param(*pair, id=pair[0].name) for pair in reference.rendered(ROOT)],
)
def test_reference_files_are_what_the_table_renders(path: Path, text: str) -> None:
    assert path.read_text(encoding="utf-8") == text, "run python -m mlxceld.config.reference"


def test_a_document_without_marks_is_not_overwritten() -> None:
    with pytest.raises(ValueError, match="no part between"):
        reference.with_table("by hand", "| table |")


def test_documents_name_every_setting_and_variable_and_no_other() -> None:
    settings_doc = (ROOT / reference.SETTINGS_DOC).read_text(encoding="utf-8")
    environment_doc = (ROOT / reference.ENVIRONMENT_DOC).read_text(encoding="utf-8")
    variables = {name for row in SETTINGS.values() for name in row.env} | {CONFIG_ENV}
    rows = re.findall(r"^\| `([^`]+)` \| `-", settings_doc, re.MULTILINE)
    assert rows == list(SETTINGS)
    named = re.compile(r"`((?:MLXCEL_|APC_)[A-Z_]+)")
    assert set(named.findall(environment_doc)) == variables
    assert set(named.findall(settings_doc)) == variables


def test_documents_speak_of_no_setting_that_is_not_there() -> None:
    """Prose beside the tables: a dotted name in it is a setting's."""
    groups = "|".join(sorted({name.partition(".")[0] for name in SETTINGS if "." in name}))
    for name in (reference.SETTINGS_DOC, reference.ENVIRONMENT_DOC):
        text = (ROOT / name).read_text(encoding="utf-8")
        found = set(re.findall(rf"`((?:{groups})\.[a-z_]+)`", text))
        assert found <= set(SETTINGS)


def test_the_yaml_file_as_shipped_sets_nothing() -> None:
    assert read_file(ROOT / reference.YAML_FILE) == {}


def test_the_yaml_file_with_every_comment_taken_off_sets_every_default(tmp_path: Path) -> None:
    lines = (ROOT / reference.YAML_FILE).read_text(encoding="utf-8").splitlines()
    file = tmp_path / "mlxceld.yaml"
    # A setting follows its # at once or after the two spaces of its group; prose does not.
    bare = [re.sub(r"^#((?:  )?[a-z_]+:)", r"\1", line) for line in lines]
    file.write_text("\n".join(bare))
    values = read_file(file)
    optional = {name for name, row in SETTINGS.items() if row.optional}
    assert set(values) | optional == set(SETTINGS)
    assert values == {name: SETTINGS[name].default for name in values}


def test_one_line_of_a_group_can_be_used_alone(tmp_path: Path) -> None:
    text = (ROOT / reference.YAML_FILE).read_text(encoding="utf-8")
    file = tmp_path / "mlxceld.yaml"
    file.write_text(text.replace("#  snapshot_ttl: 2h", "  snapshot_ttl: 1h"))
    assert read_file(file) == {"prompt_cache.snapshot_ttl": 3600.0}


def test_the_example_in_the_document_is_a_good_file(tmp_path: Path) -> None:
    text = (ROOT / reference.SETTINGS_DOC).read_text(encoding="utf-8")
    example = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    assert yaml.safe_load(example[1])
    file = tmp_path / "mlxceld.yaml"
    file.write_text(example[1])
    assert read_file(file) == {
        "model": "demo",
        "prompt_cache.capacity_bytes": 4 * 2**30,
        "prompt_cache.ttl": 7200.0,
        "log.level": "debug",
    }
