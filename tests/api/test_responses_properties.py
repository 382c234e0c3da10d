"""What holds for every conversation of the Responses API, tried with Hypothesis."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlxceld.api.errors import ApiError
from mlxceld.api.notes import Notes
from mlxceld.api.parts import CallArguments, CallStart, Part, Reasoning, Text
from mlxceld.api.responses.items import convert
from mlxceld.api.responses.output import OutputItems
from mlxceld.api.responses.tools import offered_tools

USER = {"role": "user", "content": "Fix it."}
TOOLS: Any = [
    {"type": "function", "name": "look", "parameters": {"type": "object"}},
    {"type": "custom", "name": "edit"},
    {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "go"}]},
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "tool_search", "execution": "client"},
]

NAMES = ("look", "edit", "ns__go", "local_shell", "shell", "apply_patch", "tool_search", "unknown")
ARGUMENTS = st.one_of(
    st.fixed_dictionaries({"input": st.text()}),
    st.fixed_dictionaries(
        {"command": st.lists(st.text())}, optional={"timeout_ms": st.integers(0, 9)}
    ),
    st.fixed_dictionaries({"commands": st.lists(st.text())}),
    st.fixed_dictionaries({"type": st.just("delete_file"), "path": st.text()}),
    st.dictionaries(st.text(), st.text() | st.none() | st.integers()),
)
PARTS = st.one_of(
    st.text(min_size=1).map(Text),
    st.text(min_size=1).map(Reasoning),
    st.tuples(st.sampled_from(NAMES), ARGUMENTS),
)


@given(st.lists(PARTS, max_size=6), st.booleans(), st.booleans())
def test_an_answer_sent_back_is_the_answer_that_was_stored(
    pieces: list[Any], carried: bool, plain: bool
) -> None:
    """Whatever the SDK keeps or adds, and where reasoning only comes as it is carried."""
    ids = iter(range(1000))
    items = OutputItems(
        lambda: str(next(ids)),
        offered_tools([(f"tools[{i}]", tool) for i, tool in enumerate(TOOLS)], Notes()),
        carry_reasoning=carried,
    )
    calls = 0
    events = []
    for piece in pieces:
        parts: list[Part] = []
        if isinstance(piece, tuple):
            parts = [
                CallStart(calls, f"call_{calls}", piece[0]),
                CallArguments(calls, json.dumps(piece[1])),
            ]
            calls += 1
        else:
            parts = [piece]
        events += items.add(parts)
    events += items.ensure_text() + items.close()
    done = [fields["item"] for kind, fields in events if kind == "response.output_item.done"]
    assert done == items.items
    stored = convert([USER, *items.items], Notes()).messages
    sent = []
    for item in items.items:
        back = {name: item[name] for name in sorted(item) if name not in ("id", "status")}
        back["internal_chat_message_metadata_passthrough"] = {"turn_id": "t"}
        if carried and item["type"] == "reasoning" and not plain:
            del back["content"]
        for name in ("action", "operation"):
            if name in item:
                back[name] = {key: item[name][key] for key in sorted(item[name])}
        sent.append(back)
    assert convert([USER, *sent], Notes()).messages == stored
    # Nothing of it is lost.
    assert sum(len(message.get("tool_calls", ())) for message in stored) == calls


KINDS = st.sampled_from(
    [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "shell_call",
        "shell_call_output",
        "apply_patch_call",
        "apply_patch_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
        "additional_tools",
        "configuration_update",
        "compaction",
        "function",
        "custom",
        "namespace",
        "local_shell",
        "shell",
        "tool_search",
        "input_text",
        "input_file",
        "exit",
        "client",
        "grammar",
        "c1",
        "user",
        "assistant",
        "low",
    ]
)
NAMED = st.sampled_from(
    [
        "type",
        "role",
        "content",
        "text",
        "summary",
        "name",
        "namespace",
        "arguments",
        "input",
        "call_id",
        "id",
        "output",
        "action",
        "operation",
        "command",
        "commands",
        "tools",
        "status",
        "stdout",
        "outcome",
        "exit_code",
        "reasoning",
        "effort",
        "encrypted_content",
        "file_data",
        "description",
        "parameters",
        "format",
        "definition",
        "environment",
        "execution",
        "path",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | KINDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMED, inner, max_size=5),
    max_leaves=8,
)
ITEMS = st.dictionaries(NAMED, VALUES, max_size=6).flatmap(
    lambda item: KINDS.map(lambda kind: {**item, "type": kind})
)


@given(st.lists(ITEMS, min_size=1, max_size=3), st.lists(ITEMS, max_size=3))
def test_whatever_is_sent_is_a_conversation_or_a_refusal(items: Any, tools: Any) -> None:
    notes = Notes()
    refusal = None
    try:
        converted = convert(items, notes)
        numbered = [(f"tools[{index}]", tool) for index, tool in enumerate(tools)]
        offered = offered_tools([*numbered, *converted.tools], notes)
    except ApiError as error:
        refusal = error
    if refusal is not None:
        assert refusal.status == 400
        assert refusal.param is not None
        assert refusal.param.startswith(("input[", "tools["))
        return
    for tool in offered.functions:
        assert isinstance(tool["function"]["name"], str)
        assert isinstance(tool["function"].get("description", ""), str)
        assert isinstance(tool["function"].get("parameters", {}), dict)
    for message in converted.messages:
        content = message["content"]
        texts = [part["text"] for part in content] if isinstance(content, list) else [content]
        assert all(isinstance(text, str) for text in texts)
        for made in message.get("tool_calls", ()):
            assert isinstance(made["id"], str)
            assert isinstance(made["function"]["name"], str)
            assert isinstance(made["function"]["arguments"], str)
    json.dumps(converted.messages)
