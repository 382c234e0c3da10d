"""Messages' content blocks that templates do not know, and conversations that say nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from api_harness import ScriptedEngine, delta, finished, open_api, say
from mlxceld.api.notes import HEADER
from mlxceld.config import Settings

Told = tuple[AsyncAnthropic, ScriptedEngine]

TEXT_DOCUMENT = {
    "type": "document",
    "title": 'The "plan"',
    "source": {"type": "text", "media_type": "text/plain", "data": "Step one."},
}
CONTENT_DOCUMENT = {
    "type": "document",
    "source": {"type": "content", "content": [{"type": "text", "text": "Step two."}]},
}
SEARCH_RESULT = {
    "type": "search_result",
    "source": "https://x.org",
    "title": "X",
    "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
}
SERVER_CALL = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "rain"},
}
SERVER_RESULT = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "url": "https://x.org",
            "title": "X",
            "encrypted_content": "Zm9v",
            "page_age": None,
        }
    ],
}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}

# A block, its text, and the note that it leaves, if it does.
AS_TEXT: list[tuple[dict[str, Any], str, str | None]] = [
    (
        TEXT_DOCUMENT,
        '<document title="The \\"plan\\"">\nStep one.\n</document>',
        None,
    ),
    (CONTENT_DOCUMENT, "<document>\nStep two.\n</document>", None),
    (
        SEARCH_RESULT,
        '<search_result title="X" source="https://x.org">\none\ntwo\n</search_result>',
        None,
    ),
    (
        {"type": "tool_reference", "tool_name": "look"},
        "<tool_reference>\nlook\n</tool_reference>",
        None,
    ),
    ({"type": "compaction", "content": "They spoke of rain."}, "They spoke of rain.", None),
    ({"type": "compaction", "encrypted_content": "x"}, "", "compaction"),
    (
        SERVER_CALL,
        '<server_tool_use name="web_search">\n{"query": "rain"}\n</server_tool_use>',
        None,
    ),
    (
        SERVER_RESULT,
        "<web_search_tool_result>\n"
        '[{"url": "https://x.org", "title": "X", "page_age": null}]\n'
        "</web_search_tool_result>",
        None,
    ),
    (
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
        },
        '<web_search_tool_result>\n{"error_code": "max_uses_exceeded"}\n</web_search_tool_result>',
        None,
    ),
    (
        {
            "type": "web_fetch_tool_result",
            "tool_use_id": "s",
            "content": {
                "type": "web_fetch_result",
                "url": "https://x.org",
                "content": {"type": "document", "source": PDF},
            },
        },
        "<web_fetch_tool_result>\n"
        '{"url": "https://x.org", "content": {"source": {"media_type": "application/pdf"}}}\n'
        "</web_fetch_tool_result>",
        "application/pdf data in a tool's result",
    ),
    (
        {
            "type": "bash_code_execution_tool_result",
            "tool_use_id": "s",
            "content": {
                "type": "bash_code_execution_result",
                "stdout": "1\n",
                "stderr": "",
                "return_code": 0,
                "content": [],
            },
        },
        "<bash_code_execution_tool_result>\n"
        '{"stdout": "1\\n", "stderr": "", "return_code": 0, "content": []}\n'
        "</bash_code_execution_tool_result>",
        None,
    ),
    (
        {"type": "mcp_tool_use", "id": "m", "name": "ls", "server_name": "fs", "input": {}},
        '<mcp_tool_use name="ls" server="fs">\n{}\n</mcp_tool_use>',
        None,
    ),
    (
        {
            "type": "mcp_tool_result",
            "tool_use_id": "m",
            "is_error": False,
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        "<mcp_tool_result>\na\nb\n</mcp_tool_result>",
        None,
    ),
    ({"type": "container_upload", "file_id": "f"}, "", "container_upload"),
    (
        {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
        "",
        "fallback",
    ),
    ({"type": "mcp_tool_listing", "mcp_server_name": "fs", "tools": []}, "", "mcp_tool_listing"),
    (
        {"type": "brand_new", "id": "x", "mood": "calm", "cache_control": {"type": "ephemeral"}},
        '<brand_new>\n{"mood": "calm"}\n</brand_new>',
        None,
    ),
    ({"text": "without a type"}, "without a type", None),
    ({"type": "text", "text": ""}, "", None),
]


@pytest.fixture
async def told(scripted: ScriptedEngine, settings: Callable[..., Settings]) -> AsyncIterator[Told]:
    scripted.on_submit = lambda stream: say(stream, delta("ok"), finished())
    async with open_api(scripted, settings()) as client:
        url = str(client.make_url("/"))
        async with AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as ai:
            yield ai, scripted


def prompt_of(engine: ScriptedEngine) -> str:
    return engine.text.decode(engine.requests[-1].tokens, skip_special_tokens=False)


async def ask(ai: AsyncAnthropic, messages: list[Any], **more: Any) -> str:
    """Send it; the notes of the answer."""
    raw = await ai.messages.with_raw_response.create(
        model="m", max_tokens=9, messages=messages, extra_body=more
    )
    counted = await ai.messages.count_tokens(model="m", messages=messages, extra_body=more)
    assert counted.input_tokens > 0
    return raw.headers.get(HEADER, "")


@pytest.mark.parametrize("role", ["user", "assistant", "result"])
@pytest.mark.parametrize(("block", "text", "note"), AS_TEXT)
async def test_a_block_is_text_or_noted(
    told: Told, role: str, block: dict[str, Any], text: str, note: str | None
) -> None:
    ai, engine = told
    if role == "user":
        messages: list[Any] = [{"role": "user", "content": [block]}]
        shown, path = f"<|im_start|>user\n{text}<|im_end|>", "messages[0].content[0]"
    elif role == "assistant":
        messages = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "So:"}, block]},
            {"role": "user", "content": "And?"},
        ]
        said = "So:" if note and not text else f"So:\n{text}"
        shown, path = f"<|im_start|>assistant\n{said}<|im_end|>", "messages[1].content[1]"
    else:
        result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
        messages = [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
            },
            {"role": "user", "content": [result]},
        ]
        shown, path = f"<|im_start|>tool\n{text}<|im_end|>", "messages[2].content[0].content[0]"
    told_notes = await ask(ai, messages)
    assert shown in prompt_of(engine)
    assert told_notes.startswith(f"{path}: {note}") if note else not told_notes


async def test_a_history_of_server_tools_keeps_its_prefix(told: Told) -> None:
    ai, engine = told
    turn: list[Any] = [
        {"role": "user", "content": [TEXT_DOCUMENT, {"type": "text", "text": "Read."}]},
        {"role": "assistant", "content": [SERVER_CALL, SERVER_RESULT]},
        {"role": "user", "content": "Go on."},
    ]
    await ask(ai, turn)
    first = prompt_of(engine)
    await ask(ai, [*turn, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "?"}])
    assert prompt_of(engine).startswith(first)


async def test_a_message_of_server_calls_alone_is_answered(told: Told) -> None:
    ai, engine = told
    await ask(
        ai, [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [SERVER_CALL]}]
    )
    assert prompt_of(engine).endswith("</server_tool_use>")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([{"type": "image", "source": {}}], "messages[0].content[0].type"),
        ([{"type": "document", "source": PDF}], "messages[0].content[0].source.type"),
        ([{"type": "document"}], "messages[0].content[0].source"),
        ([{"type": "new_picture", "source": PDF}], "messages[0].content[0].type"),
        (
            [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
            "messages[0].content[0].type",
        ),
        ([{"type": 3}], "messages[0].content[0].type"),
        ([{}], "messages[0].content[0].type"),
        ([{"type": "search_result", "content": 3}], "messages[0].content[0].content"),
        (
            [{"type": "compaction", "content": "x", "tool_changes": [1]}],
            "messages[0].content[0].tool_changes[0]",
        ),
        ([], "messages[0].content"),
        (None, "messages[0].content"),
    ],
)
@pytest.mark.parametrize("system", [None, "Be brief."])
async def test_what_is_no_text_is_refused_by_name(
    told: Told, content: Any, named: str, system: str | None
) -> None:
    ai, engine = told
    messages: list[Any] = [{"role": "user", "content": content}]
    more: dict[str, Any] = {"extra_body": {"system": system}} if system else {}
    for call in (
        ai.messages.create(model="m", max_tokens=9, messages=messages, **more),
        ai.messages.count_tokens(model="m", messages=messages, **more),
    ):
        with pytest.raises(anthropic.BadRequestError) as caught:
            await call
        body: Any = caught.value.body
        assert body["error"]["type"] == "invalid_request_error"
        assert body["error"]["message"].startswith(f"{named} is ")
    assert not engine.requests


async def test_a_conversation_without_any_text_is_refused(told: Told) -> None:
    ai, _ = told
    silent: list[Any] = [{"role": "system", "content": []}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content is empty"):
        await ai.messages.create(model="m", max_tokens=9, messages=silent, system="")


async def test_a_late_system_message_keeps_its_place(told: Told) -> None:
    ai, engine = told
    messages: list[Any] = [
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": [{"type": "text", "text": "Speak low."}]},
        {"role": "assistant", "content": "Hello"},
        {"role": "system", "content": "For now.", "clear_at": "next_user_message"},
    ]
    await ask(ai, messages, system=[{"type": "text", "text": "A"}, {"type": "text", "text": "B"}])
    history = (
        "<|im_start|>system\nA\nB<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>system\nSpeak low.<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
    )
    now = "<|im_start|>system\nFor now.<|im_end|>\n"
    assert history + now in prompt_of(engine)
    await ask(ai, [*messages, {"role": "user", "content": "More"}], system="A\nB")
    assert history + "<|im_start|>user\nMore" in prompt_of(engine)


async def test_arguments_of_a_call_and_a_failed_result(told: Told) -> None:
    ai, engine = told
    calls = [
        {"type": "tool_use", "id": "a", "name": "f", "input": None},
        {"type": "tool_use", "id": "b", "name": "g"},
        {"type": "tool_use", "id": "c", "name": "h", "input": '{"x": 1}'},
    ]
    results = [{"type": "tool_result", "tool_use_id": "a", "is_error": True}]
    messages: list[Any] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    ]
    await ask(ai, messages)
    prompt = prompt_of(engine)
    for written in (
        '{"name": "f", "arguments": {}}',
        '{"name": "g", "arguments": {}}',
        '{"name": "h", "arguments": {"x": 1}}',
        "tool\nThe tool failed.",
    ):
        assert written in prompt


async def test_an_image_in_a_tools_result_is_left_out_with_a_note(told: Told) -> None:
    ai, engine = told
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "image", "source": {"type": "base64", "data": "aGk="}}],
    }
    await ask(ai, [{"role": "user", "content": [result]}])
    assert "[image left out: this model reads text]" in prompt_of(engine)
