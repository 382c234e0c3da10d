"""A mapping of bounded size that keeps what was used last."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Lru(Generic[T]):
    """At most ``most`` items; not thread-safe: its owner holds the lock."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: OrderedDict[str, T] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def get(self, key: str) -> T | None:
        """The item, now the one used last; None if there is none."""
        if key not in self._items:
            return None
        self._items.move_to_end(key)
        return self._items[key]

    def put(self, key: str, value: T) -> None:
        """Keep an item, and drop those that were not used for longest beyond the limit."""
        self._items[key] = value
        self._items.move_to_end(key)
        while len(self._items) > self._most:
            self._items.popitem(last=False)
