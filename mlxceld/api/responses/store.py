"""Responses that can be continued or fetched: in memory, within a budget of bytes."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was answered, with the conversation up to its end.

    ``items`` are all of the conversation's, those of the answer last, each with an id; the
    instructions are not among them. ``session`` is the session key that continuing it inherits.
    """

    body: Mapping[str, Any]
    items: Sequence[dict[str, Any]]
    session: str


class ResponseStore:
    """The newest responses that fit ``capacity_bytes``, counted as JSON; 0 keeps none.

    Those that were used longest ago make room. Used on the event loop only.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._entries: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self._holders: dict[str, dict[str, int]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, response_id: str, response: StoredResponse) -> bool:
        """Keep a response; False if it is larger than the whole budget."""
        size = len(json.dumps([response.body, list(response.items)], ensure_ascii=False).encode())
        self.remove(response_id)
        if size > self._capacity:
            return False
        self._entries[response_id] = (response, size)
        for index, item in enumerate(response.items):
            self._holders.setdefault(item["id"], {})[response_id] = index
        self.bytes += size
        while self.bytes > self._capacity:
            self.remove(next(iter(self._entries)))
        return True

    def get(self, response_id: str) -> StoredResponse | None:
        """A kept response, which counts as used; None if it is not kept."""
        found = self._entries.get(response_id)
        if found is None:
            return None
        self._entries.move_to_end(response_id)
        return found[0]

    def item(self, item_id: str) -> dict[str, Any] | None:
        """An item of any kept response, which counts as used; None if none has it."""
        holders = self._holders.get(item_id)
        if not holders:
            return None
        response_id = next(reversed(holders))
        found = self.get(response_id)
        return None if found is None else found.items[holders[response_id]]

    def remove(self, response_id: str) -> bool:
        """Forget a response; False if it was not kept."""
        found = self._entries.pop(response_id, None)
        if found is None:
            return False
        for item in found[0].items:
            holders = self._holders.get(item["id"])
            if holders is not None and holders.pop(response_id, None) is not None and not holders:
                del self._holders[item["id"]]
        self.bytes -= found[1]
        return True
