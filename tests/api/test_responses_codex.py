"""Codex's request as it sends it, in both of its forms, over two turns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from api_harness import ScriptedEngine, delta, finished, open_api, say
from engine_harness import make_settings
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine


def function(name: str, **properties: str) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": f"Does {name}.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {key: {"type": kind} for key, kind in properties.items()},
            "additionalProperties": False,
        },
    }


FUNCTIONS = [
    function("exec_command", cmd="string", workdir="string", yield_time_ms="number"),
    function("write_stdin", session_id="number", chars="string"),
    function("update_plan", explanation="string"),
    function("request_user_input", question="string"),
    function("view_image", path="string"),
    function("list_mcp_resources", server="string"),
    function("read_mcp_resource", server="string", uri="string"),
]
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files; not JSON.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'},
}
AGENTS = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Tools in the multi_agent_v1 namespace.",
    "tools": [function("spawn_agent", message="string"), function("close_agent", id="string")],
}
SEARCH = {"type": "web_search", "external_web_access": False}


def message(role: str, text: str, number: int) -> dict[str, Any]:
    return {
        "type": "message",
        "id": f"msg_{number}",
        "role": role,
        "content": [{"type": "input_text", "text": text}],
        "internal_chat_message_metadata_passthrough": {"turn_id": "turn_1"},
    }


BEGINNING = [
    message("developer", "<permissions instructions>read-only</permissions instructions>", 1),
    message("developer", "<multi_agent_mode>off</multi_agent_mode>", 2),
    message("user", "<environment_context><cwd>/src</cwd></environment_context>", 3),
    message("user", "hello", 4),
]


def request(items: list[Any], **changes: Any) -> dict[str, Any]:
    return {
        "model": "any",
        "instructions": "You are a coding agent.",
        "input": items,
        "tools": [*FUNCTIONS, PATCH, AGENTS, SEARCH],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": None,
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199a213-81c0-7800-8aa1-bbab2a035a53",
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "i"},
        **changes,
    }


def lite(items: list[Any]) -> dict[str, Any]:
    """The form without ``tools`` and ``instructions``: both are items of the input."""
    members = {**AGENTS, "name": "functions", "tools": [*FUNCTIONS, PATCH]}
    first = [
        {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [members, AGENTS]},
        message("developer", "You are a coding agent.", 0),
    ]
    body = request([*first, *items], reasoning={"effort": "medium", "summary": "auto"})
    return {name: value for name, value in body.items() if name not in ("tools", "instructions")}


async def events_of(client: Any, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await client.post(
        "/v1/responses", json=body, headers={"Accept": "text/event-stream"}
    )
    raw = await response.text()
    assert response.status == 200, raw
    # What is skipped is said before the first event.
    assert ("X-Mlxceld-Notes" in response.headers) == ("mlxceld_notes" in raw)
    return [
        json.loads(line.removeprefix("data: "))
        for line in raw.splitlines()
        if line.startswith("data: ")
    ]


def sent_back(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The finished items as Codex keeps them: plain reasoning is left out."""
    kept = []
    for event in events:
        if event["type"] == "response.output_item.done":
            item = {
                name: value
                for name, value in event["item"].items()
                if name != "status"
                and not (event["item"]["type"] == "reasoning" and name == "content")
            }
            kept.append({**item, "internal_chat_message_metadata_passthrough": {"turn_id": "t"}})
    return kept


@pytest.mark.parametrize("form", [request, lite])
async def test_the_second_turn_is_read_from_the_cache(
    roomy: Engine, tmp_path: Path, form: Callable[[list[Any]], dict[str, Any]]
) -> None:
    async with open_api(roomy, make_settings(tmp_path)) as client:
        # Codex sets no limit; random weights would go on to the end of the context.
        first = await events_of(client, {**form(BEGINNING), "max_output_tokens": 12})
        again = [*BEGINNING, *sent_back(first), message("user", "go on", 5)]
        second = await events_of(client, {**form(again), "max_output_tokens": 12})
    before, after = (events[-1]["response"]["usage"] for events in (first, second))
    assert after["input_tokens_details"]["cached_tokens"] >= 0.95 * before["input_tokens"]
    assert [event["sequence_number"] for event in second] == list(range(len(second)))


@pytest.mark.parametrize("form", [request, lite])
async def test_a_turn_with_tools(
    scripted: ScriptedEngine,
    settings: Callable[..., Settings],
    form: Callable[[list[Any]], dict[str, Any]],
) -> None:
    written = [
        {"name": "exec_command", "arguments": {"cmd": "ls"}},
        {"name": "apply_patch", "arguments": {"input": "*** Begin Patch"}},
        {"name": "multi_agent_v1__spawn_agent", "arguments": {"message": "m"}},
    ]
    text = "I look.\n" + "".join(f"<tool_call>{json.dumps(one)}</tool_call>" for one in written)
    scripted.on_submit = lambda stream: say(stream, delta(text), finished())
    body = {**form(BEGINNING), "parallel_tool_calls": True}
    async with open_api(scripted, settings()) as client:
        events = await events_of(client, body)
        items = sent_back(events)
        assert [(item["type"], item.get("namespace"), item.get("name")) for item in items] == [
            ("message", None, None),
            ("function_call", "functions" if form is lite else None, "exec_command"),
            ("custom_tool_call", "functions" if form is lite else None, "apply_patch"),
            ("function_call", "multi_agent_v1", "spawn_agent"),
        ]
        outputs = [
            {
                "type": f"{item['type'].removesuffix('_call')}_call_output"
                if item["type"] == "function_call"
                else "custom_tool_call_output",
                "call_id": item["call_id"],
                "output": f"out {number}",
            }
            for number, item in enumerate(items[1:])
        ]
        await events_of(
            client, {**form([*BEGINNING, *items, *outputs]), "parallel_tool_calls": True}
        )
    one, two = (
        scripted.text.decode(sent.tokens, skip_special_tokens=False) for sent in scripted.requests
    )
    assert "web_search" not in one
    head = one.removesuffix("<|im_start|>assistant\n")
    assert two.startswith(head)
    history = two.removeprefix(head)
    assert history.startswith("<|im_start|>assistant\nI look.<tool_call>")
    assert history.count("<tool_call>") == 3
    assert [f"tool\nout {number}<|im_end|>" in history for number in range(3)] == [True] * 3
    if form is request:
        metadata = events[-1]["response"]["metadata"]
        assert 'tools[9]: a tool of type "web_search"' in metadata["mlxceld_notes"]
