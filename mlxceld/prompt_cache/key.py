"""Under which name a prefix is stored, and who may use it."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from functools import lru_cache

SESSION_HASH_DIGITS = 12
"""How many hex digits of a session key's digest are shown in place of the key."""

ENTRY_DIGEST_DIGITS = 16
"""How many hex digits name an entry."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A namespace of prefixes: only requests of one bucket ever share anything.

    ``lora`` and ``media`` are empty for the base model and for prompts of text alone.
    """

    model: str
    template_signature: str
    lora: str = ""
    media: str = ""


def entry_digest(bucket: Bucket, session: str, tokens: array[int]) -> str:
    """What an entry is called in tables and orders: the same for as long as it is stored."""
    digest = hashlib.sha256(repr((bucket, session)).encode("utf-8", "surrogatepass"))
    digest.update(tokens.tobytes())
    return digest.hexdigest()[:ENTRY_DIGEST_DIGITS]


@lru_cache(maxsize=4096)
def session_hash(key: str) -> str:
    """How a session is named in logs, tables and reports: never by its raw key."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return digest[:SESSION_HASH_DIGITS]


def session_matches(key: str, wanted: str) -> bool:
    """Whether ``wanted``, a raw session key or its hash, names the session ``key``."""
    return wanted in (key, session_hash(key))
