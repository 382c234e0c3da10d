"""The one table of settings: each field below declares a setting once.

Flags, environment variables, YAML keys, ``config show`` and the documentation all come from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast, get_type_hints

from mlxceld.config import kinds
from mlxceld.config.kinds import Kind
from mlxceld.config.spec import Spec, setting

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "console", "json")

_SIZING = (
    "To size the store, measure snapshot_bytes after one turn and multiply by the number of"
    " entries expected to be resident."
)


@dataclass(frozen=True)
class AdminSettings:
    """Where the admin API listens."""

    socket: Path | None = setting(
        kinds.PathKind(),
        default=None,
        help="Unix socket of the admin API.",
        section="Admin API",
        default_text="admin.sock in the state folder",
    )
    listen: str | None = setting(
        kinds.AddressKind(),
        default=None,
        help="Also serve the admin API on this loopback address; needs admin.token_file.",
        section="Admin API",
        default_text="off",
    )
    token_file: Path | None = setting(
        kinds.PathKind(),
        default=None,
        help="File with the bearer tokens of the admin API, one a line; not readable by others."
        " Made, with a new token, where it is missing; re-read on SIGHUP.",
        section="Admin API",
        live=True,
    )


@dataclass(frozen=True)
class LogSettings:
    """What is logged, and how."""

    level: str = setting(
        kinds.ChoiceKind(LOG_LEVELS),
        default="info",
        help="Least severe lines that are logged.",
        section="Logging",
        live=True,
    )
    format: str = setting(
        kinds.ChoiceKind(LOG_FORMATS),
        default="auto",
        help="How lines are written; auto is console on a terminal and under journald, else json.",
        section="Logging",
    )


@dataclass(frozen=True)
class ResponsesSettings:
    """What is kept of stored responses."""

    capacity_bytes: int = setting(
        kinds.SizeKind(),
        default=64 * 2**20,
        help="Memory for stored responses that a later request may continue; 0 keeps none.",
        section="Serving",
    )


@dataclass(frozen=True)
class PromptCacheSettings:
    """What is kept of finished prompts."""

    enabled: bool = setting(
        kinds.BoolKind(),
        default=True,
        help="Keep the caches of finished requests for later ones.",
        section="Prompt cache",
        flags=("--prompt-cache/--no-prompt-cache", "--prompt-cache-enabled"),
    )
    capacity_bytes: int = setting(
        kinds.SizeKind(),
        default=2 * 2**30,
        help="Memory for stored prefixes; 0 disables their store.",
        section="Prompt cache",
        live=True,
    )
    max_entries: int = setting(
        kinds.IntKind(0, 10**9, zero_words=True),
        default=1024,
        help="Most stored prefixes; 0 disables their store.",
        section="Prompt cache",
        live=True,
    )
    ttl: float = setting(
        kinds.DurationKind(),
        default=3600.0,
        help="How long a stored prefix may stay unused; 0 is for ever.",
        section="Prompt cache",
        live=True,
    )
    min_prefix: int = setting(
        kinds.IntKind(1, 10**9),
        default=32,
        help="Fewest tokens worth storing or reusing.",
        section="Prompt cache",
    )
    snapshot_capacity_bytes: int = setting(
        kinds.SizeKind(),
        default=512 * 2**20,
        help=f"Memory for state snapshots; 0 disables their store. {_SIZING}",
        section="Prompt cache",
        live=True,
    )
    snapshot_max_entries: int = setting(
        kinds.IntKind(0, 10**9, zero_words=True),
        default=4096,
        help=f"Most state snapshots; 0 disables their store. {_SIZING}",
        section="Prompt cache",
        live=True,
    )
    snapshot_ttl: float = setting(
        kinds.DurationKind(),
        default=7200.0,
        help=f"How long a state snapshot may stay unused; 0 is for ever. {_SIZING}",
        section="Prompt cache",
        live=True,
    )
    prefetch: str = setting(
        kinds.ChoiceKind(("on", "off", "auto")),
        default="auto",
        help="Whether idle time is used to prefill what the next turn will repeat;"
        " auto is not on battery.",
        section="Prompt cache",
    )


@dataclass(frozen=True)
class ApcSettings:
    """Automatic prefix caching."""

    enabled: bool = setting(
        kinds.BoolKind(),
        default=True,
        help="Reuse parts of stored prefixes; off: only those wholly contained in the request.",
        section="Prompt cache",
        flags=("--apc/--no-apc", "--apc-enabled"),
        env_aliases=("APC_ENABLED",),
    )
    block_size: int = setting(
        kinds.IntKind(1, 4096),
        default=16,
        help="Tokens in a block of the pool.",
        section="Prompt cache",
        env_aliases=("APC_BLOCK_SIZE",),
    )
    hash: str = setting(
        kinds.ChoiceKind(("sha256", "blake2b")),
        default="sha256",
        help="What blocks are hashed with.",
        section="Prompt cache",
        env_aliases=("APC_HASH",),
    )
    trace: bool = setting(
        kinds.BoolKind(),
        default=False,
        help="Log one line for each cache event; mlxctl trace switches it while the daemon runs.",
        section="Prompt cache",
        env_kind=kinds.OnlyOneKind(),
    )


@dataclass(frozen=True)
class Settings:
    """Every setting, with the value that is in force."""

    model: str | None = setting(
        kinds.OptionalTextKind(),
        default=None,
        help="The model to serve: an MLX model folder, a .gguf file, a hub id (org/name), or demo.",
        section="Model",
        flags=("--model/-m",),
        default_text="none; it has to be given",
    )
    alias: tuple[str, ...] = setting(
        kinds.TextsKind(),
        default=(),
        help="A further name under which the model answers (repeatable).",
        section="Model",
    )
    strict_model: bool = setting(
        kinds.BoolKind(),
        default=False,
        help="Refuse requests that name another model instead of answering them.",
        section="Model",
    )
    host: str = setting(
        kinds.HostKind(),
        default="127.0.0.1",
        help="Address that the public API listens on.",
        section="Network",
    )
    port: int = setting(
        kinds.IntKind(0, 65535),
        default=8484,
        help="Port of the public API; 0 takes a free one.",
        section="Network",
    )
    insecure: bool = setting(
        kinds.BoolKind(),
        default=False,
        help="Allow a host that is not loopback without API keys.",
        section="Network",
    )
    api_keys_file: Path | None = setting(
        kinds.PathKind(),
        default=None,
        help="File with the API keys, one 'name: key' a line; re-read on SIGHUP.",
        section="Network",
        live=True,
    )
    allowed_hosts: tuple[str, ...] = setting(
        kinds.TextsKind(),
        default=(),
        help="A further Host name that requests may carry while listening on loopback"
        " (repeatable).",
        section="Network",
        default_text="loopback names",
    )
    cors_origins: tuple[str, ...] = setting(
        kinds.TextsKind(),
        default=(),
        help="An origin whose pages may call the API (repeatable).",
        section="Network",
    )
    max_body: int = setting(
        kinds.SizeKind(1024),
        default=32 * 2**20,
        help="Largest request body.",
        section="Network",
    )
    state_dir: Path = setting(
        cast("Kind[Path]", kinds.PathKind()),
        default=Path(),
        help="Folder for the lock, the admin socket, logs and converted models.",
        section="Daemon",
        default_text="the platform's; under systemd $STATE_DIRECTORY",
    )
    request_timeout: float = setting(
        kinds.DurationKind(),
        default=600.0,
        help="Longest time from a request's arrival to its last token; 0 is no limit.",
        section="Serving",
    )
    reasoning_alias: bool = setting(
        kinds.BoolKind(),
        default=True,
        help="Write what the model thinks into the chat field reasoning as well as into"
        " reasoning_content.",
        section="Serving",
    )
    drain_timeout: float = setting(
        kinds.DurationKind(zero_words=False),  # 0 is no wait at all, the opposite of never
        default=30.0,
        help="How long a stop waits for running requests; 0 is not at all.",
        section="Daemon",
    )
    max_batch_size: int = setting(
        kinds.IntKind(1, 1024),
        default=8,
        help="Most sequences computed at once.",
        section="Serving",
    )
    max_queue: int = setting(
        kinds.IntKind(1, 10**6),
        default=64,
        help="Most sequences that wait; more are refused with 429.",
        section="Serving",
    )
    prefill_chunk: int = setting(
        kinds.IntKind(1, 2**20),
        default=512,
        help="Most prompt tokens computed between two decode steps; fewer, by half at most at once,"
        " while a stream runs and a chunk takes over 250 ms.",
        section="Serving",
    )
    kv_backend: str = setting(
        kinds.ChoiceKind(("paged", "dense")),
        default="paged",
        help="How stored prefixes are kept: in blocks that all share, or whole, used up by who"
        " adopts them. Models whose caches are not all pageable use the latter with either.",
        section="Serving",
    )
    kv_cache_budget: int | None = setting(
        kinds.AutoSizeKind(),
        default=None,
        help="Most memory for keys and values, running and stored together. Requests wait, and the"
        " youngest make way, to stay within it. Auto: 0.8 of what the weights and a reserve leave"
        " of the device's memory; the start-up log shows the terms.",
        section="Serving",
        default_text="auto",
    )
    warm_files: tuple[Path, ...] = setting(
        kinds.PathsKind(),
        default=(),
        help="A file with a prompt to prefill and pin at the start (repeatable).",
        section="Prompt cache",
    )
    volatile_heads: bool = setting(
        kinds.BoolKind(),
        default=True,
        help="Drop the known lines that clients change with every request from the system text.",
        section="Serving",
    )
    special_tokens_in_text: bool = setting(
        kinds.BoolKind(),
        default=False,
        help="Let control tokens such as <|im_end|> in the texts of a conversation steer the model;"
        " else they are text like any other. Raw prompts may always have them.",
        section="Serving",
    )
    admin: AdminSettings = field(default_factory=AdminSettings)
    log: LogSettings = field(default_factory=LogSettings)
    responses: ResponsesSettings = field(default_factory=ResponsesSettings)
    prompt_cache: PromptCacheSettings = field(default_factory=PromptCacheSettings)
    apc: ApcSettings = field(default_factory=ApcSettings)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. ``env`` lists variable names, the first is the setting's own."""

    name: str
    default: Any
    spec: Spec
    flags: tuple[str, ...]
    env: tuple[str, ...]

    @property
    def kind(self) -> Kind[Any]:
        """How its values are read."""
        return self.spec.kind

    @property
    def help(self) -> str:
        """What it does."""
        return self.spec.help

    @property
    def optional(self) -> bool:
        """Whether nothing (null) can be given, for the default."""
        return self.default is None or self.default == Path()

    @property
    def is_switch(self) -> bool:
        """Whether its flag takes no value."""
        return isinstance(self.spec.kind, kinds.BoolKind)

    def parse_env(self, text: str) -> Any:
        """The value of an environment variable; raises ValueError."""
        return (self.spec.env_kind or self.kind).parse(text)

    def default_text(self) -> str:
        """The default as people read it."""
        return self.spec.default_text or self.kind.format(self.default) or "none"


def _rows(settings_type: type, prefix: str = "") -> Iterator[Setting]:
    hints = get_type_hints(settings_type)
    for item in fields(settings_type):
        name = f"{prefix}{item.name}"
        if is_dataclass(hints[item.name]):
            yield from _rows(cast(type, hints[item.name]), f"{name}.")
            continue
        spec: Spec = item.metadata["setting"]
        flag = "--" + name.replace(".", "-").replace("_", "-")
        if isinstance(spec.kind, kinds.BoolKind):
            flag = f"{flag}/--no-{flag[2:]}"
        variable = "MLXCEL_" + name.replace(".", "_").upper()
        yield Setting(
            name, item.default, spec, spec.flags or (flag,), (variable, *spec.env_aliases)
        )


SETTINGS: Mapping[str, Setting] = MappingProxyType({row.name: row for row in _rows(Settings)})
"""Every setting by its dotted name, in the order of the table."""
