"""Messages' tools of every kind: offered as functions where the client runs them."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from anthropic.types.beta import BetaMemoryTool20250818Command, BetaToolUnionParam
from jsonschema import Draft202012Validator

from mlxceld.api.anthropic.conversion import conversation_of
from mlxceld.api.anthropic.schemas import PromptRequest
from mlxceld.api.anthropic.tools import _CLIENT_TOOLS
from mlxceld.api.conversation import Conversation
from mlxceld.api.errors import ApiError
from mlxceld.api.notes import Notes
from mlxceld.api.validation import validate

LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {"p": {}}}}
HELLO = [{"role": "user", "content": "Hi"}]


def turn(tools: list[Any], **more: Any) -> tuple[Conversation, list[str]]:
    notes = Notes()
    body = {"model": "m", "messages": HELLO, "tools": tools, **more}
    return conversation_of(validate(PromptRequest, body), notes), notes.texts


def names(made: Conversation) -> list[str]:
    return [tool["function"]["name"] for tool in made.tools or ()]


def vendors_types() -> list[str]:
    """The type of every tool that the SDK knows besides functions."""
    hints = [typing.get_type_hints(kind) for kind in typing.get_args(BetaToolUnionParam)]
    return [typing.get_args(one["type"])[0] for one in hints if "input_schema" not in one]


@pytest.mark.parametrize("kind", [*vendors_types(), "tool_of_next_year"])
def test_a_tool_of_the_vendors_is_offered_or_noted(kind: str) -> None:
    name = None if "toolset" in kind else "theirs"
    given = {"type": kind, **({"name": name} if name else {}), "cache_control": None}
    made, notes = turn([given, LOOK])
    if kind in _CLIENT_TOOLS:
        assert names(made) == [name, "look"]
        assert notes == []
    else:
        assert names(made) == ["look"]
        assert len(notes) == 1
        assert notes[0].startswith(f"tools[0]: {kind} (")
    alone, _ = turn([given])
    assert (alone.tools is None) == (kind not in _CLIENT_TOOLS)


@pytest.mark.parametrize("kind", sorted(_CLIENT_TOOLS))
def test_offered_tools_have_whole_schemas(kind: str) -> None:
    made, _ = turn([{"type": kind, "name": "t"}])
    function = (made.tools or ())[0]["function"]
    assert function["description"]
    Draft202012Validator.check_schema(function["parameters"])
    assert set(function["parameters"]["required"]) <= set(function["parameters"]["properties"])


def test_the_memory_tool_takes_what_the_sdk_reads() -> None:
    kinds = typing.get_args(typing.get_args(BetaMemoryTool20250818Command)[0])
    properties = _CLIENT_TOOLS["memory_20250818"]["parameters"]["properties"]
    read = {field for kind in kinds for field in kind.model_fields}
    assert read == set(properties)


@pytest.mark.parametrize(
    "given",
    [
        {"name": "f"},
        {"name": "f", "input_schema": None, "description": None},
        {"type": "custom", "name": "f", "input_schema": {}},
        {
            "name": "f",
            "strict": True,
            "defer_loading": True,
            "allowed_callers": ["direct"],
            "input_examples": [{}],
            "eager_input_streaming": True,
            "cache_control": {"type": "ephemeral"},
        },
    ],
)
def test_a_function_may_be_incomplete(given: dict[str, Any]) -> None:
    made, notes = turn([given])
    assert made.tools == [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    assert notes == []


@pytest.mark.parametrize(
    ("tools", "choice", "named"),
    [
        ([{"type": "web_search_20250305", "name": "web_search"}], {"type": "any"}, "tool_choice"),
        (
            [{"type": "web_search_20250305", "name": "web_search"}, LOOK],
            {"type": "tool", "name": "web_search"},
            "tool_choice.name",
        ),
        ([LOOK], {"type": "tool", "name": "walk"}, "tool_choice.name"),
        ([LOOK], {"type": "tool"}, "tool_choice.name"),
        ([], {"type": "any"}, "tool_choice"),
    ],
)
def test_a_choice_of_what_is_not_offered_is_refused(
    tools: list[Any], choice: dict[str, Any], named: str
) -> None:
    with pytest.raises(ApiError) as caught:
        turn(tools, tool_choice=choice)
    assert (caught.value.status, caught.value.param) == (400, named)


def change(kind: str, tool: dict[str, Any]) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


WALK = {"type": "tool_definition", "definition": {"name": "walk"}}


@pytest.mark.parametrize(
    ("changes", "offered"),
    [
        ([change("tool_addition", WALK)], ["look", "walk"]),
        ([change("tool_removal", {"type": "tool_reference", "name": "look"})], []),
        (
            [
                change("tool_removal", {"type": "tool_reference", "name": "look"}),
                change("tool_addition", WALK),
                change("tool_addition", {"type": "tool_reference", "name": "look"}),
            ],
            ["look", "walk"],
        ),
    ],
)
def test_system_messages_change_the_tools(changes: list[Any], offered: list[str]) -> None:
    made, notes = turn([LOOK], messages=[*HELLO, *changes])
    assert names(made) == offered
    assert [message["role"] for message in made.messages] == ["user"]
    assert notes == []


@pytest.mark.parametrize(
    ("tool", "named"),
    [
        ({"type": "tool_reference", "name": "unknown"}, "messages[1].content[0].tool.name"),
        ({"type": "tool_definition"}, "messages[1].content[0].tool.definition"),
        (
            {"type": "tool_definition", "definition": {"name": 3}},
            "messages[1].content[0].tool.definition.name",
        ),
    ],
)
def test_a_change_that_cannot_be_made_is_named(tool: dict[str, Any], named: str) -> None:
    with pytest.raises(ApiError) as caught:
        turn([LOOK], messages=[*HELLO, change("tool_addition", tool)])
    assert caught.value.param == named
    assert named in str(caught.value)


def test_a_change_of_a_servers_tools_is_noted() -> None:
    reference = {"type": "mcp_toolset_reference", "server_name": "fs"}
    made, notes = turn([LOOK], messages=[*HELLO, change("tool_addition", reference)])
    assert names(made) == ["look"]
    assert notes[0].startswith("messages[1].content[0].tool: mcp_toolset_reference")
