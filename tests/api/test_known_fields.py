"""Every field that a vendor's SDK can send is honoured, refused, noted or known to be harmless."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from anthropic.types import message_create_params as messages
from anthropic.types.beta import (
    message_count_tokens_params as beta_count,
)
from anthropic.types.beta import (
    message_create_params as beta_messages,
)
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chat

from api_harness import ScriptedEngine, delta, finished, open_api, say
from mlxceld.api.anthropic.fields import (
    COUNT_FIELDS,
    MESSAGE_FIELDS,
    REFUSED_IN_THE_SDKS_FORM,
)
from mlxceld.api.anthropic.schemas import MessagesRequest, PromptRequest
from mlxceld.api.known_fields import FieldTable
from mlxceld.api.notes import HEADER
from mlxceld.api.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS
from mlxceld.api.openai.schemas import ChatRequest, CompletionRequest
from mlxceld.config import Settings

HELLO = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": HELLO},
    "/v1/messages/count_tokens": {"model": "m", "messages": HELLO},
}


def fields_of(*kinds: Any) -> set[str]:
    return {name for kind in kinds for name in kind.__annotations__}


SDK: list[tuple[set[str], Any, FieldTable, frozenset[str]]] = [
    (
        fields_of(chat.CompletionCreateParamsBase, chat.CompletionCreateParamsStreaming),
        ChatRequest,
        CHAT_FIELDS,
        frozenset(),
    ),
    (
        fields_of(
            completions.CompletionCreateParamsBase, completions.CompletionCreateParamsStreaming
        ),
        CompletionRequest,
        COMPLETION_FIELDS,
        frozenset(),
    ),
    (
        fields_of(
            messages.MessageCreateParamsBase,
            messages.MessageCreateParamsStreaming,
            beta_messages.MessageCreateParamsBase,
        ),
        MessagesRequest,
        MESSAGE_FIELDS,
        REFUSED_IN_THE_SDKS_FORM,
    ),
    (fields_of(beta_count.MessageCountTokensParams), PromptRequest, COUNT_FIELDS, frozenset()),
]


@pytest.mark.parametrize(("sdk", "honoured", "table", "special"), SDK)
def test_every_field_of_the_sdk_is_in_one_class(
    sdk: set[str], honoured: Any, table: FieldTable, special: frozenset[str]
) -> None:
    assert len(sdk) > 10
    known = [
        *honoured.model_fields,
        *table.refused,
        *table.skipped,
        *table.harmless,
        *special,
    ]
    assert len(known) == len(set(known))
    assert sdk - set(known) == set()


Posted = Callable[[str, dict[str, Any]], Any]


@pytest.fixture
async def post(
    scripted: ScriptedEngine, settings: Callable[..., Settings]
) -> AsyncIterator[Posted]:
    scripted.on_submit = lambda stream: say(stream, delta("ok"), finished())
    async with open_api(scripted, settings()) as client:

        async def send(route: str, more: dict[str, Any]) -> tuple[int, str, str]:
            response = await client.post(route, json={**BODIES[route], **more})
            return response.status, await response.text(), response.headers.get(HEADER, "")

        yield send


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
KEEP_ALL = {"type": "clear_thinking_20251015", "keep": "all"}
SUMMARIZE = {"type": "summarize"}


@pytest.mark.parametrize(
    ("route", "field", "value"),
    [
        (CHAT, "audio", {"voice": "ash", "format": "wav"}),
        (CHAT, "modalities", ["text", "audio"]),
        (MESSAGES, "compaction", SUMMARIZE),
        (COMPLETIONS, "echo", True),
        (COMPLETIONS, "suffix", "x"),
        (COMPLETIONS, "best_of", 2),
    ],
)
async def test_what_would_make_another_answer_is_refused_by_name(
    post: Posted, route: str, field: str, value: Any
) -> None:
    status, text, _ = await post(route, {field: value})
    assert status == 400
    assert f"{field} is " in text


@pytest.mark.parametrize(
    ("route", "field", "value"),
    [
        (CHAT, "web_search_options", {}),
        (CHAT, "verbosity", "low"),
        (CHAT, "moderation", {"policy": {}}),
        (CHAT, "guided_json", {"type": "object"}),
        (COMPLETIONS, "grammar", "root ::= x"),
        (MESSAGES, "container", "container_1"),
        (MESSAGES, "mcp_servers", [{"type": "url", "name": "fs", "url": "https://x"}]),
        (MESSAGES, "context_management", {"edits": [{"type": "clear_tool_uses_20250919"}]}),
        (COUNT, "context_management", {"edits": [KEEP_ALL, {"type": "compact_20260112"}]}),
        (MESSAGES, "output_config", {"task_budget": {"type": "tokens", "total": 1}}),
    ],
)
async def test_what_only_adds_is_skipped_with_a_note(
    post: Posted, route: str, field: str, value: Any
) -> None:
    status, text, notes = await post(route, {field: value})
    assert status == 200, text
    assert notes.startswith(field)


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        (CHAT, {"modalities": ["text"], "verbosity": "medium", "store": True}),
        (CHAT, {"prediction": {"type": "content", "content": "x"}, "service_tier": "auto"}),
        (CHAT, {"grammar": "", "audio": None, "some_new_field": [1]}),
        (MESSAGES, {"context_management": {"edits": [KEEP_ALL]}, "container": None}),
        (MESSAGES, {"mcp_servers": [], "service_tier": "auto", "speed": "fast"}),
        (MESSAGES, {"betas": ["x"], "inference_geo": "us", "fallbacks": "default"}),
        (COUNT, {"compaction": SUMMARIZE}),
        *[
            (route, dict.fromkeys((*table.refused, *table.skipped, *table.harmless)))
            for route, table in (
                (CHAT, CHAT_FIELDS),
                (COMPLETIONS, COMPLETION_FIELDS),
                (MESSAGES, MESSAGE_FIELDS),
                (COUNT, COUNT_FIELDS),
            )
        ],
    ],
)
async def test_what_asks_for_nothing_else_passes(
    post: Posted, route: str, fields: dict[str, Any]
) -> None:
    status, text, notes = await post(route, fields)
    assert status == 200, text
    assert notes == ""
