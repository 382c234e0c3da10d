"""How a field of the table declares a setting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from mlxceld.config.kinds import Kind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spec:
    """What a field of the table declares beside its name and default."""

    kind: Kind[Any]
    help: str
    section: str
    flags: tuple[str, ...] = ()
    env_aliases: tuple[str, ...] = ()
    env_kind: Kind[Any] | None = None
    default_text: str = ""
    live: bool = False


def setting(
    kind: Kind[T],
    *,
    default: T,
    help: str,
    section: str,
    flags: tuple[str, ...] = (),
    env_aliases: tuple[str, ...] = (),
    env_kind: Kind[Any] | None = None,
    default_text: str = "",
    live: bool = False,
) -> T:
    """Declare a setting.

    ``flags`` replace the flag that follows from the name; ``env_aliases`` are further variable
    names; ``env_kind`` reads the environment where it differs; ``default_text`` says what the
    default comes to; ``live`` settings are re-read while the daemon runs.
    """
    spec = Spec(kind, help, section, flags, env_aliases, env_kind, default_text, live)
    return field(default=default, metadata={"setting": spec})
