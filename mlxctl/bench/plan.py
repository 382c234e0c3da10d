"""What a benchmark is to run, as plain data: a record can be compared with it field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ServerSpec:
    """One server to measure.

    ``kind`` is mlxceld, mlx_lm.server, command or url. ``program`` starts it, with ``{model}`` and
    ``{port}`` to fill in where it is a command; ``flags`` are added for the others. ``url`` is of a
    server that runs already.
    """

    name: str
    kind: str
    program: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    url: str | None = None


@dataclass(frozen=True)
class Sizes:
    """How large the scenarios are.

    Tokens are of the model's own tokenizer. ``tokens`` is what an answer may have at most,
    ``decode_tokens`` a long one's.
    """

    prefix_tokens: int = 3700
    question_tokens: int = 16
    tokens: int = 16
    decode_tokens: int = 96
    sharers: int = 8
    turns: int = 8
    prompts: int = 32
    short_streams: int = 4
    idle_seconds: float = 5.0


@dataclass(frozen=True)
class Plan:
    """All that decides what is sent to whom, in which order.

    ``model`` is a folder, or None where only servers that run already are measured.
    ``settle_seconds`` pass before memory is looked at; ``min_prefix`` is the shortest shared run
    that counts as one worth computing once. With ``ignore_eos`` no answer may have a token that
    ends it, so that each is as long as it may be.
    """

    model: str | None
    servers: tuple[ServerSpec, ...]
    scenarios: tuple[str, ...]
    sizes: Sizes
    repeats: int = 5
    seed: int = 1
    settle_seconds: float = 0.5
    min_prefix: int = 32
    ignore_eos: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The plan in JSON's types."""
        return _plain(asdict(self))  # type: ignore[no-any-return]


def first_difference(
    recorded: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> tuple[str, Any, Any] | None:
    """The first field in which two plans differ, by its path, with both values."""
    for key in dict.fromkeys([*wanted, *recorded]):
        before, now = recorded.get(key), wanted.get(key)
        if before == now:
            continue
        path = f"{prefix}{key}"
        if isinstance(before, dict) and isinstance(now, dict):
            return first_difference(before, now, f"{path}.")
        if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
            pairs = enumerate(zip(before, now, strict=True))
            index, (a, b) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
            if isinstance(a, dict) and isinstance(b, dict):
                return first_difference(a, b, f"{path}[{index}].")
            return f"{path}[{index}]", a, b
        return path, before, now
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
