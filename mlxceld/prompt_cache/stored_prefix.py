"""What the books of a store need to know of an entry, whatever the store."""

from __future__ import annotations

from array import array
from typing import Protocol

from mlxceld.prompt_cache.key import Bucket


class StoredPrefix(Protocol):
    """One entry of any store; times are readings of the store's clock.

    ``hits`` counts its adoptions; one with ``pins`` goes neither by age nor for others.
    """

    bucket: Bucket
    session: str
    tokens: array[int]
    created: float
    last_used: float
    hits: int
    client: str | None
    pins: int

    @property
    def origin(self) -> str:
        """What it was stored from."""
