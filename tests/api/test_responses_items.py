"""Items of every type, as clients send them back: the same conversation whichever way it comes."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from api_harness import ScriptedEngine, delta, finished, open_api, say
from mlxceld.api.errors import ApiError
from mlxceld.api.notes import Notes
from mlxceld.api.responses.items import convert
from mlxceld.config import Settings

USER = {"role": "user", "content": "Fix it."}
LOOK: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}}
AGENTS: Any = {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "go"}]}


@pytest.fixture
async def told(
    scripted: ScriptedEngine, settings: Callable[..., Settings]
) -> AsyncIterator[tuple[AsyncOpenAI, ScriptedEngine]]:
    async with (
        open_api(scripted, settings()) as client,
        AsyncOpenAI(base_url=str(client.make_url("/v1")), api_key="k", max_retries=0) as ai,
    ):
        yield ai, scripted


def messages_of(*items: Any) -> list[dict[str, Any]]:
    notes = Notes()
    messages = convert([*items], notes).messages
    assert notes.texts == []
    return messages


def noted(*items: Any) -> tuple[list[dict[str, Any]], list[str]]:
    notes = Notes()
    return convert([*items], notes).messages, notes.texts


def call(name: str, arguments: Any, call_id: str = "c1") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": name, "arguments": text}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def result(content: Any, call_id: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


@pytest.mark.parametrize(
    ("items", "messages"),
    [
        (
            [
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": None},
                {"type": "function_call_output", "call_id": "c1", "output": None},
            ],
            [call("look", "{}"), result("")],
        ),
        (
            [
                {
                    "type": "function_call",
                    "call_id": "c1",
                    "name": "go",
                    "namespace": "mcp__x__",
                    "arguments": '{"a": 1}',
                },
                {
                    "type": "function_call_output",
                    "call_id": "c1",
                    "output": [{"type": "input_text", "text": "rain"}],
                },
            ],
            [call("mcp__x__go", '{"a": 1}'), result("rain")],
        ),
        (
            [
                {"type": "custom_tool_call", "call_id": "c1", "name": "edit", "input": "p"},
                {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
            ],
            [call("edit", {"input": "p"}), result("done")],
        ),
        (
            [
                {
                    "type": "local_shell_call",
                    "id": "lsh_1",
                    "call_id": "c1",
                    "action": {"type": "exec", "env": {}, "user": None, "command": ["ls"]},
                },
                {"type": "local_shell_call_output", "id": "lsh_1", "output": "a.txt"},
            ],
            [call("local_shell", {"command": ["ls"]}), result("a.txt")],
        ),
        (
            [
                {
                    "type": "shell_call",
                    "call_id": "c1",
                    "action": {"timeout_ms": 5, "commands": ["ls"], "max_output_length": None},
                },
                {
                    "type": "shell_call_output",
                    "call_id": "c1",
                    "output": [
                        {
                            "stdout": "a",
                            "stderr": "b",
                            "outcome": {"type": "exit", "exit_code": 2},
                        },
                        {"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},
                    ],
                },
            ],
            [
                call("shell", {"commands": ["ls"], "timeout_ms": 5}),
                result("a\nb\n(exit code 2)\n(timed out)"),
            ],
        ),
        (
            [
                {
                    "type": "apply_patch_call",
                    "call_id": "c1",
                    "status": "completed",
                    "operation": {"diff": "+x", "path": "a", "type": "create_file"},
                },
                {"type": "apply_patch_call_output", "call_id": "c1", "status": "failed"},
            ],
            [
                call("apply_patch", {"type": "create_file", "path": "a", "diff": "+x"}),
                result("failed"),
            ],
        ),
        (
            [{"type": "function_call_output", "name": "clock", "output": "noon"}],
            [{"role": "user", "content": "clock:\nnoon"}],
        ),
        (
            [{"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}}],
            [
                {
                    "role": "assistant",
                    "content": 'web_search_call: {"action": {"query": "q", "type": "search"}}',
                }
            ],
        ),
        (
            [
                {
                    "type": "mcp_call",
                    "id": "m",
                    "server_label": "s",
                    "name": "n",
                    "arguments": "{}",
                    "output": "o",
                    "error": None,
                }
            ],
            [
                {
                    "role": "assistant",
                    "content": 'mcp_call: {"arguments": "{}", "name": "n", "output": "o",'
                    ' "server_label": "s"}',
                }
            ],
        ),
        (
            [{"type": "image_generation_call", "id": "i", "result": "aGk=", "revised_prompt": "p"}],
            [{"role": "assistant", "content": 'image_generation_call: {"revised_prompt": "p"}'}],
        ),
        ([{"role": "assistant", "content": None}], [{"role": "assistant", "content": ""}]),
        ([{"type": "message", "role": "user"}], [{"role": "user", "content": ""}]),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}],
            [{"role": "assistant", "content": "", "reasoning_content": "s"}],
        ),
        (
            [{"type": "agent_message", "author": "a", "content": [{"text": "from a friend"}]}],
            [{"role": "user", "content": "from a friend"}],
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        "bare",
                        {
                            "type": "input_file",
                            "filename": "a.txt",
                            "file_data": "data:text/plain;base64,"
                            + base64.b64encode(b"hi").decode(),
                        },
                    ],
                }
            ],
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "bare"},
                        {"type": "text", "text": "a.txt:\nhi"},
                    ],
                }
            ],
        ),
    ],
)
def test_items_become_messages(items: list[Any], messages: list[Any]) -> None:
    assert messages_of(*items) == messages


@pytest.mark.parametrize(
    ("item", "note"),
    [
        ({"type": "compaction", "encrypted_content": "x"}, "compaction, a compacted history"),
        ({"type": "compaction_summary", "encrypted_content": "x"}, "compaction_summary"),
        ({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, "encrypted reasoning"),
        ({"type": "mcp_list_tools", "server_label": "s", "tools": []}, "mcp_list_tools"),
        ({"type": "brand_new", "payload": 3}, 'the unknown type "brand_new"'),
    ],
)
def test_what_cannot_be_read_is_noted(item: Any, note: str) -> None:
    messages, notes = noted(USER, item, USER)
    assert messages == [USER, USER]
    assert len(notes) == 1
    assert notes[0].startswith("input[1]: ")
    assert note in notes[0]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "compaction_trigger"}, "input[0].type"),
        ({"type": "computer_call_output", "call_id": "c", "output": {}}, "input[0].type"),
        ({"content": "x"}, "input[0].type"),
        ({"type": "function_call", "name": "look"}, "input[0].call_id"),
        ({"type": "function_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "additional_tools"}, "input[0].tools"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            "input[0].content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]},
            "input[0].content[0].type",
        ),
        (
            {
                "role": "user",
                "content": [{"type": "input_file", "file_data": "data:text/plain;base64,///"}],
            },
            "input[0].content[0].file_data",
        ),
    ],
)
def test_what_changes_the_answer_is_refused_by_name(item: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        convert([item], Notes())
    assert (caught.value.status, caught.value.param) == (400, param)


def test_an_image_in_a_tools_result_is_left_out_with_a_note() -> None:
    notes = Notes()
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]}
    [told] = convert([output], notes, known=0).messages
    assert told["content"] == "[image left out: this model reads text]"
    assert len(notes.texts) == 1


async def test_additional_tools_are_offered(told: tuple[AsyncOpenAI, ScriptedEngine]) -> None:
    ai, engine = told
    written = json.dumps({"name": "look", "arguments": {}})
    engine.on_submit = lambda s: say(s, delta(f"<tool_call>{written}</tool_call>"), finished())
    more: Any = {"type": "additional_tools", "role": "developer", "tools": [LOOK]}
    found: Any = [
        {"type": "tool_search_call", "call_id": "c1", "arguments": {"query": "go"}},
        {"type": "tool_search_output", "call_id": "c1", "tools": [AGENTS]},
    ]
    response = await ai.responses.create(model="m", input=[more, USER, *found])  # type: ignore[list-item]
    text = engine.text.decode(engine.requests[0].tokens, skip_special_tokens=False)
    assert '"name": "look"' in text
    assert '"name": "ns__go"' in text
    assert '<|im_start|>tool\n{"tools": ["ns"]}' in text
    assert response.output[0].type == "function_call"


async def test_updates_of_the_configuration_hold(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = lambda stream: say(stream, delta("{}"), finished())
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    updates: Any = [
        {"type": "configuration_update", "text": {"format": form}},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
    ]
    await ai.responses.create(model="m", input=[USER, *updates])  # type: ignore[list-item]
    assert engine.requests[0].constraint is not None


async def test_a_reference_is_the_stored_item(told: tuple[AsyncOpenAI, ScriptedEngine]) -> None:
    ai, engine = told
    engine.on_submit = lambda stream: say(stream, delta("Rain."), finished())
    first = await ai.responses.create(model="m", input="Weather?")
    asked = (await ai.responses.input_items.list(first.id)).data[0]
    references: Any = [
        {"type": "item_reference", "id": asked.id},
        {"id": first.output[0].id},
        {"role": "user", "content": "Why?"},
    ]
    by_reference = await ai.responses.create(model="m", input=references)
    third = await ai.responses.create(model="m", input="Why?", previous_response_id=first.id)
    assert engine.requests[1].tokens == engine.requests[2].tokens
    # What is stored is the item and not the reference.
    items = (await ai.responses.input_items.list(by_reference.id, order="asc")).data
    assert [item.type for item in items] == ["message"] * 3
    for response in (first, by_reference, third):
        await ai.responses.delete(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.create(model="m", input=references)
    assert (caught.value.param, caught.value.code) == ("input[0].id", "item_not_found")
