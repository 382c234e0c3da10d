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

    ``messages`` are in the shape of chat completions, without the instructions; ``session`` is
    the session key that continuing it inherits.
    """

    body: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    session: str


class ResponseStore:
    """The newest responses that fit ``capacity_bytes``, counted as JSON; 0 keeps none.

    Those that were used longest ago make room. Used on the event loop only.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._entries: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, response_id: str, response: StoredResponse) -> bool:
        """Keep a response; False if it is larger than the whole budget."""
        size = len(
            json.dumps([response.body, list(response.messages)], ensure_ascii=False).encode()
        )
        self.remove(response_id)
        if size > self._capacity:
            return False
        self._entries[response_id] = (response, size)
        self.bytes += size
        while self.bytes > self._capacity:
            _, (_, freed) = self._entries.popitem(last=False)
            self.bytes -= freed
        return True

    def get(self, response_id: str) -> StoredResponse | None:
        """A kept response, which counts as used; None if it is not kept."""
        found = self._entries.get(response_id)
        if found is None:
            return None
        self._entries.move_to_end(response_id)
        return found[0]

    def remove(self, response_id: str) -> bool:
        """Forget a response; False if it was not kept."""
        found = self._entries.pop(response_id, None)
        if found is None:
            return False
        self.bytes -= found[1]
        return True
