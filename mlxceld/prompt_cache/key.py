"""Under which name a prefix is stored, and who may use it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

SESSION_HASH_DIGITS = 12
"""How many hex digits of a session key's digest are shown in place of the key."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A namespace of prefixes: only requests of one bucket ever share anything.

    ``lora`` and ``media`` are empty for the base model and for prompts of text alone.
    """

    model: str
    template_signature: str
    lora: str = ""
    media: str = ""


@lru_cache(maxsize=4096)
def session_hash(key: str) -> str:
    """How a session is named in logs, tables and reports: never by its raw key."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return digest[:SESSION_HASH_DIGITS]


def session_matches(key: str, wanted: str) -> bool:
    """Whether ``wanted``, a raw session key or its hash, names the session ``key``."""
    return wanted in (key, session_hash(key))
