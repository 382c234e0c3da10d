"""Tools of every type, driven by the openai client: offered, called and skipped."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from api_harness import ScriptedEngine, delta, finished, open_api, say
from mlxceld.api.notes import Notes
from mlxceld.api.parts import CallArguments, CallStart
from mlxceld.api.responses.output import OutputItems
from mlxceld.api.responses.tools import offered_tools
from mlxceld.config import Settings
from mlxceld.engine.constraint import make_constraint
from mlxceld.engine.engine import Engine
from mlxceld.engine.events import FinishReason

FUNCTION = {"type": "function", "name": "look", "parameters": None, "strict": None}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
AGENTS = {
    "type": "namespace",
    "name": "multi_agent",
    "description": "Other agents.",
    "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object"}}],
}
SERVER_RUN = [
    {"type": "web_search"},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "file_search", "vector_store_ids": ["v"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "computer_use_preview"},
    {"type": "mcp", "server_label": "s"},
    {"type": "image_generation"},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "tool_search"},
    {"type": "brand_new"},
]


@pytest.fixture
async def told(
    scripted: ScriptedEngine, settings: Callable[..., Settings]
) -> AsyncIterator[tuple[AsyncOpenAI, ScriptedEngine]]:
    async with (
        open_api(scripted, settings()) as client,
        AsyncOpenAI(base_url=str(client.make_url("/v1")), api_key="k", max_retries=0) as ai,
    ):
        yield ai, scripted


def calling(name: str, arguments: Any) -> Callable[[Any], None]:
    written = json.dumps({"name": name, "arguments": arguments})
    return lambda s: say(s, delta(f"<tool_call>{written}</tool_call>"), finished())


async def streamed(ai: AsyncOpenAI, **body: Any) -> tuple[list[Any], Any]:
    async with ai.responses.stream(model="m", **body) as stream:
        events = [event async for event in stream]
        return events, await stream.get_final_response()


async def both(ai: AsyncOpenAI, **body: Any) -> tuple[list[Any], Any]:
    """The events of a stream and its last item, which has to be that of a whole answer."""
    events, final = await streamed(ai, **body)
    whole = await ai.responses.create(model="m", **body)
    one, other = (answer.output[-1].to_dict() for answer in (final, whole))
    for item in (one, other):
        for name in ("id", "call_id"):
            item.pop(name)
        item.pop("parsed_arguments", None)  # the SDK's own
    assert one == other
    return events, final.output[-1]


def prompt(engine: ScriptedEngine) -> str:
    return engine.text.decode(engine.requests[-1].tokens, skip_special_tokens=False)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_what_the_server_would_run_is_skipped_with_a_note(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = lambda stream: say(stream, delta("Yes."), finished())
    tools: Any = [*SERVER_RUN, FUNCTION]
    events, final = await streamed(ai, input="Hello", tools=tools)
    assert '"name": "look"' in prompt(engine)
    for tool in SERVER_RUN:
        assert str(tool["type"]) not in prompt(engine)
    note = final.metadata["mlxceld_notes"]
    assert note.startswith('tools[0]: a tool of type "web_search" is not run here')
    assert len(note) <= 512
    assert events[0].response.metadata == final.metadata


async def test_a_custom_tool_is_called_with_text(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = calling("apply_patch", {"input": "*** Begin\n+é"})
    events, call = await both(ai, input="Fix it.", tools=[PATCH])
    assert 'start: \\"x\\"' in prompt(engine)
    assert (call.type, call.name, call.input) == (
        "custom_tool_call",
        "apply_patch",
        "*** Begin\n+é",
    )
    kinds = [event.type for event in events]
    assert kinds[2:] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[2].item.input == ""
    assert events[3].delta == events[4].input == call.input


@pytest.mark.parametrize(
    ("arguments", "text"),
    [({"patch": "p"}, "p"), ({"a": "b", "c": "d"}, '{"a": "b", "c": "d"}'), ({}, "{}")],
)
async def test_a_custom_tool_gets_its_text_however_it_is_wrapped(
    told: tuple[AsyncOpenAI, ScriptedEngine], arguments: Any, text: str
) -> None:
    ai, engine = told
    engine.on_submit = calling("apply_patch", arguments)
    _, call = await both(ai, input="Fix it.", tools=[PATCH])
    assert (call.type, call.input) == ("custom_tool_call", text)


@pytest.mark.parametrize("written", ["multi_agent__spawn", "spawn"])
async def test_a_member_of_a_namespace_comes_back_as_such(
    told: tuple[AsyncOpenAI, ScriptedEngine], written: str
) -> None:
    ai, engine = told
    engine.on_submit = calling(written, {"a": 1})
    _, call = await both(ai, input="Go.", tools=[FUNCTION, AGENTS])
    assert '"name": "multi_agent__spawn"' in prompt(engine)
    assert '"description": "Other agents."' in prompt(engine)
    assert (call.type, call.name, call.namespace) == ("function_call", "spawn", "multi_agent")
    assert json.loads(call.arguments) == {"a": 1}


async def test_the_default_namespace_goes_by_bare_names(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = calling("apply_patch", {"input": "x"})
    tools: Any = [{**AGENTS, "name": "functions", "tools": [FUNCTION, PATCH]}]
    _, call = await both(ai, input="Go.", tools=tools)
    assert '"name": "look"' in prompt(engine)
    assert (call.type, call.name, call.namespace) == (
        "custom_tool_call",
        "apply_patch",
        "functions",
    )


@pytest.mark.parametrize(
    ("tool", "arguments", "kind", "field", "value"),
    [
        (
            {"type": "local_shell"},
            {"command": ["ls", "-l"], "timeout_ms": 5},
            "local_shell_call",
            "action",
            {
                "type": "exec",
                "command": ["ls", "-l"],
                "env": {},
                "timeout_ms": 5,
                "user": None,
                "working_directory": None,
            },
        ),
        (
            {"type": "local_shell"},
            {"command": "ls -l"},
            "local_shell_call",
            "action",
            {
                "type": "exec",
                "command": ["bash", "-lc", "ls -l"],
                "env": {},
                "timeout_ms": None,
                "user": None,
                "working_directory": None,
            },
        ),
        (
            {"type": "shell", "environment": {"type": "local"}},
            {"commands": ["ls"]},
            "shell_call",
            "action",
            {"commands": ["ls"], "timeout_ms": None, "max_output_length": None},
        ),
        (
            {"type": "apply_patch"},
            {"type": "create_file", "path": "a", "diff": "+x"},
            "apply_patch_call",
            "operation",
            {"type": "create_file", "path": "a", "diff": "+x"},
        ),
        (
            {"type": "tool_search", "execution": "client", "description": "Finds."},
            {"query": "mail"},
            "tool_search_call",
            "arguments",
            {"query": "mail"},
        ),
    ],
)
async def test_tools_with_a_meaning_of_their_own(
    told: tuple[AsyncOpenAI, ScriptedEngine],
    tool: dict[str, Any],
    arguments: dict[str, Any],
    kind: str,
    field: str,
    value: dict[str, Any],
) -> None:
    ai, engine = told
    engine.on_submit = calling(tool["type"], arguments)
    events, call = await both(ai, input="Go.", tools=[tool])
    assert call.type == kind
    assert call.to_dict()[field] == value
    assert call.status == "completed"
    assert call.call_id
    assert [event.type for event in events][2:] == [
        "response.output_item.added",
        "response.output_item.done",
        "response.completed",
    ]


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("local_shell", {"cmd": 3}),
        ("local_shell", {"command": [3]}),
        ("shell", {}),
        ("apply_patch", {"type": "create_file", "path": "a"}),
        ("apply_patch", {"type": "move_file", "path": "a", "diff": ""}),
    ],
)
async def test_arguments_that_do_not_fit_are_left_to_the_client(
    told: tuple[AsyncOpenAI, ScriptedEngine], kind: str, arguments: dict[str, Any]
) -> None:
    ai, engine = told
    engine.on_submit = calling(kind, arguments)
    _, call = await both(ai, input="Go.", tools=[{"type": kind}])
    assert (call.type, call.name) == ("function_call", kind)
    assert json.loads(call.arguments) == arguments


async def test_a_call_that_the_limit_has_cut_is_no_call() -> None:
    items = OutputItems(lambda: "1", offered_tools([("tools[0]", PATCH)], Notes()))
    events = items.add([CallStart(0, "c", "apply_patch"), CallArguments(0, '{"input": "*** Be')])
    assert [*events, *items.ensure_text(), *items.close("incomplete")] == []
    assert items.items == []


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ({"type": "custom", "name": "apply_patch"}, "apply_patch"),
        ({"type": "function", "name": "spawn", "namespace": "multi_agent"}, "multi_agent__spawn"),
        ({"type": "local_shell"}, "local_shell"),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "web_search"}, {"type": "function", "name": "spawn"}],
            },
            "multi_agent__spawn",
        ),
    ],
)
async def test_a_choice_of_any_tool_is_enforced(
    told: tuple[AsyncOpenAI, ScriptedEngine], choice: Any, named: str
) -> None:
    ai, engine = told
    engine.on_submit = lambda stream: say(stream, delta("{}"), finished())
    tools: Any = [FUNCTION, PATCH, AGENTS, {"type": "local_shell"}, {"type": "web_search"}]
    for name in (named, "look"):
        await ai.responses.create(model="m", input="Go.", tools=tools, tool_choice=choice)
        spec = engine.requests[-1].constraint
        assert spec is not None
        constraint = make_constraint(engine.text, spec)
        # The tokens of the tiny model are bytes.
        allowed = True
        for byte in f'{{"name": "{name}", "arguments": '.encode():
            allowed = bool(constraint.mask()[byte // 8] >> byte % 8 & 1)
            if not allowed:
                break
            constraint.accept(byte)
        assert allowed == (name == named)


async def test_all_tools_are_shown_whichever_are_allowed(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = lambda stream: say(stream, delta("Yes."), finished())
    choice: Any = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "custom", "name": "apply_patch"}],
    }
    tools: Any = [FUNCTION, PATCH]
    response = await ai.responses.create(model="m", input="Go.", tools=tools, tool_choice=choice)
    shown = prompt(engine)
    assert '"apply_patch"' in shown
    await ai.responses.create(model="m", input="Go.", tools=tools)
    # So that it stays the prompt that is cached.
    assert prompt(engine) == shown
    assert response.tool_choice.to_dict() == choice  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("choice", "param", "code"),
    [
        ({"type": "web_search_preview"}, "tool_choice", "unsupported_parameter"),
        ({"type": "mcp", "server_label": "s"}, "tool_choice", "unsupported_parameter"),
        ({"type": "shell"}, "tool_choice", "unsupported_parameter"),
        ({"type": "custom", "name": "look"}, "tool_choice", None),
        ({"type": "custom"}, "tool_choice.name", "missing_required_parameter"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]},
            "tool_choice.tools[0]",
            "unsupported_parameter",
        ),
        ({"type": "allowed_tools", "mode": "all", "tools": [FUNCTION]}, "tool_choice.mode", None),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": []},
            "tool_choice.tools",
            None,
        ),
    ],
)
async def test_a_choice_that_cannot_be_kept_is_refused(
    told: tuple[AsyncOpenAI, ScriptedEngine], choice: Any, param: str, code: str | None
) -> None:
    ai, _ = told
    tools: Any = [FUNCTION, PATCH, {"type": "web_search"}]
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.create(model="m", input="Go.", tools=tools, tool_choice=choice)
    assert (caught.value.param, caught.value.code) == (param, code)


async def test_required_needs_a_tool_that_can_be_called(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, _ = told
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.create(
            model="m", input="Go.", tools=[{"type": "web_search"}], tool_choice="required"
        )
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "function"}, "tools[0].name"),
        ({"type": "custom", "name": 3}, "tools[0].name"),
        ({"name": "x"}, "tools[0].type"),
        ({"type": "function", "name": "x", "parameters": []}, "tools[0].parameters"),
        ({"type": "namespace", "name": "x"}, "tools[0].tools"),
        (
            {"type": "namespace", "name": "x", "tools": [{"type": "function"}]},
            "tools[0].tools[0].name",
        ),
    ],
)
async def test_a_tool_without_what_it_needs_is_named(
    told: tuple[AsyncOpenAI, ScriptedEngine], tool: Any, param: str
) -> None:
    ai, _ = told
    with pytest.raises(openai.BadRequestError) as caught:
        await ai.responses.create(model="m", input="Go.", tools=[tool])
    assert caught.value.param == param


async def test_two_tools_of_one_name_are_one(told: tuple[AsyncOpenAI, ScriptedEngine]) -> None:
    ai, engine = told
    engine.on_submit = lambda stream: say(stream, delta("Yes."), finished())
    tools: Any = [PATCH, PATCH, {"type": "apply_patch"}]
    response = await ai.responses.create(model="m", input="Go.", tools=tools)
    assert prompt(engine).count('"name": "apply_patch"') == 1
    assert response.metadata is not None
    assert response.metadata["mlxceld_notes"].startswith("tools[2]: another tool has the name")


async def test_an_incomplete_answer_ends_as_the_client_wants(
    told: tuple[AsyncOpenAI, ScriptedEngine],
) -> None:
    ai, engine = told
    engine.on_submit = lambda s: say(s, delta("Half"), finished(FinishReason.LENGTH))
    async with ai.responses.stream(model="m", input="Go.") as stream:
        events = [event async for event in stream]
        # The SDK's own rule: only a completed response is final.
        with pytest.raises(RuntimeError, match=r"response\.completed"):
            await stream.get_final_response()
    last: Any = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == "Half"
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output[0].status == "incomplete"


async def test_log_probabilities(engine: Engine, settings: Callable[..., Settings]) -> None:
    body: dict[str, Any] = {
        "model": "m",
        "input": "Go.",
        "max_output_tokens": 5,
        "temperature": 0,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
    }
    async with (
        open_api(engine, settings()) as client,
        AsyncOpenAI(base_url=str(client.make_url("/v1")), api_key="k") as ai,
    ):
        whole: Any = await ai.responses.create(**body)
        stream: Any = await ai.responses.create(**body, stream=True)
        events = [event async for event in stream]
    tokens = whole.output[0].content[0].logprobs
    assert [len(token.top_logprobs) for token in tokens] == [2] * len(tokens)
    assert "".join(token.token for token in tokens) == whole.output_text
    told = [one for e in events if e.type == "response.output_text.delta" for one in e.logprobs]
    done = next(e for e in events if e.type == "response.output_text.done")
    assert [one.token for one in told] == [one.token for one in done.logprobs]
    assert [one.token for one in told] == [token.token for token in tokens]
