"""Requests that have to be refused, of many kinds, each with the status of its refusal."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from soak_dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES

Body = dict[str, Any]

MAX_BODY = 1 << 20
"""What the daemon of the soak takes at most, so that more is cheaply sent."""


@dataclass(frozen=True)
class Bad:
    """A request that has to be refused with ``status``; ``content`` is its body as sent."""

    path: str
    status: int
    content: bytes
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def bad_requests(context_tokens: int) -> list[Bad]:
    """Every kind of request that is refused, with the status of the refusal."""
    user = [{"role": "user", "content": "x"}]
    bodies: list[tuple[str, int, Body]] = [
        (CHAT, 400, {"messages": []}),
        (CHAT, 400, {"messages": user, "temperature": 3}),
        (CHAT, 400, {"messages": user, "tool_choice": "required"}),
        (CHAT, 400, {"messages": [{"role": "boss", "content": "x"}]}),
        (CHAT, 400, {"messages": user, "response_format": {"type": "yaml"}}),
        (COMPLETIONS, 400, {"prompt": [10**8]}),
        (COMPLETIONS, 400, {"prompt": "x", "n": 17}),
        (COMPLETIONS, 400, {"prompt": "x", "max_tokens": 0}),
        (COMPLETIONS, 400, {"prompt": [1] * (context_tokens + 1)}),
        (MESSAGES, 400, {"model": "any", "messages": user}),
        (MESSAGES, 400, {"model": "any", "max_tokens": 4, "messages": [{"role": "user"}]}),
        (RESPONSES, 400, {"input": []}),
        (RESPONSES, 400, {"input": "x", "previous_response_id": "resp_none"}),
        ("/v1/nothing", 404, {}),
    ]
    refused = [Bad(path, status, json.dumps(body).encode()) for path, status, body in bodies]
    good = json.dumps({"prompt": "x"}).encode()
    return [
        *refused,
        Bad(CHAT, 400, b'{"messages": ['),
        Bad(CHAT, 400, b"\xff\xfe"),
        Bad(COMPLETIONS, 413, b" " * (MAX_BODY + 1)),
        Bad(COMPLETIONS, 405, b"", method="PUT"),
        Bad(COMPLETIONS, 401, good, headers={"Authorization": "Bearer of-nobody"}),
        Bad(COMPLETIONS, 403, good, headers={"Host": "elsewhere.example"}),
    ]
