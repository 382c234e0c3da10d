"""The events of a response stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from mlxceld.api.errors import ApiError
from mlxceld.api.openai.sse import comment
from mlxceld.api.reader import AnswerReader
from mlxceld.api.responses.body import response_finished
from mlxceld.api.responses.output import OutputItems, Told
from mlxceld.engine.events import PrefillProgress, TokenLogprob, Usage


class ResponseEvents:
    """Writes the events of one response, numbered; ``ended`` is told of the whole one."""

    def __init__(
        self,
        head: dict[str, Any],
        reader: AnswerReader,
        items: OutputItems,
        ended: Callable[[dict[str, Any]], None],
    ) -> None:
        self._head = head
        self._reader = reader
        self._items = items
        self._ended = ended
        self._reason = "stop"
        self._number = 0

    def opening(self) -> str:
        """See :class:`~mlxceld.api.openai.sse.ChunkWriter`, as for the others."""
        begun = {"response": self._head}
        return self._write([("response.created", begun), ("response.in_progress", begun)])

    def progress(self, progress: PrefillProgress) -> str:
        """Nothing is said of the prompt."""
        return ""

    def keep_alive(self, progress: PrefillProgress | None) -> str:
        """A comment."""
        return comment(progress)

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> str:
        """More of the answer."""
        return self._write(self._items.add(self._reader.push(text, logprobs)))

    def finish(self, index: int, reason: str, stop_text: str | None) -> str:
        """The rest of the answer."""
        self._reason = reason
        return self._write([*self._items.add(self._reader.finish()), *self._items.ensure_text()])

    def closing(self, usage: Usage) -> str:
        """The end of the last item, and of the response."""
        status = "incomplete" if self._reason == "length" else "completed"
        written = self._write(self._items.close(status))
        response = response_finished(self._head, self._items, self._reason, usage)
        self._ended(response)
        return written + self._write([(f"response.{status}", {"response": response})])

    def failure(self, error: ApiError) -> str:
        """The response has failed."""
        told = {"code": error.code or "server_error", "message": str(error)}
        failed = {**self._head, "status": "failed", "error": told, "output": self._items.items}
        return self._write([("response.failed", {"response": failed})])

    def _write(self, events: Told) -> str:
        written = []
        for kind, fields in events:
            data = {"type": kind, "sequence_number": self._number, **fields}
            self._number += 1
            written.append(f"event: {kind}\ndata: {json.dumps(data)}\n\n")
        return "".join(written)
