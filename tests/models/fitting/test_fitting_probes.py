"""Which steps are found for which template, and what happens where none is."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from chat_templates import CASES, CHATML, QWEN3, TEMPLATES, codec_of, tool
from mlxceld.models.errors import ChatTemplateError
from mlxceld.models.fitting.conversation import Conversation
from mlxceld.models.fitting.fitting import find_fitting
from mlxceld.models.text import TextCodec

USER = {"role": "user", "content": "hi"}
WORDS = ["tools_in_words", "results_in_words", "calls_in_words"]
ALTERNATES = ["merge_users", "merge_assistants"]


def steps(source: str) -> list[str]:
    return list(codec_of(source).template_steps)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (
            "strict",
            [
                "join_leading_system", "fold_late_system", "leading_user", "merge_users",
                "user_into_result", "merge_assistants", "wrap_unread_arguments",
            ],
        ),
        (
            "strict_leading_system",
            ["join_leading_system", "fold_late_system", "wrap_unread_arguments"],
        ),
        (
            "no_system_alternating",
            [*WORDS, "system_into_user", "fold_late_system", "leading_user", *ALTERNATES],
        ),
        ("call_ids_of_nine", ["short_call_ids"]),
        ("indexes_tool_properties", ["fill_tools", "calls_in_words"]),
        ("hermes", []),
        ("qwen_coder", ["calls_in_words"]),
        ("thinking", WORDS),
    ],
)  # fmt: skip
def test_the_steps_of_each_case(name: str, found: list[str]) -> None:
    assert steps(CASES[name]) == ["developer_as_system", *found]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("qwen3", []),
        ("llama3", []),
        ("phi4", ["system_for_tools"]),
        ("deepseek-r1", ["fold_late_system"]),
        ("gemma2", [*WORDS, "system_into_user", "fold_late_system", "leading_user", *ALTERNATES]),
    ],
)
def test_the_steps_of_templates_in_public_forms(name: str, found: list[str]) -> None:
    assert steps(TEMPLATES[name].source) == ["developer_as_system", *found]


def test_a_template_that_knows_developers_keeps_them() -> None:
    assert steps(TEMPLATES["gpt-oss"].source) == [
        "split_calls",
        "text_before_calls",
        "join_leading_system",
        "fold_late_system",
    ]


SHOWS_TOOLS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
TURNS = "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ (m.content or '') }}"
END = "{{ '<|im_end|>\n' }}{% endfor %}"


def template(body: str) -> str:
    return SHOWS_TOOLS + TURNS + body + END


CALLS = "{% for c in m.tool_calls or [] %}"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (CALLS + "{{ c.function.name ~ c.function.arguments }}{% endfor %}", "arguments_as_text"),
        (CALLS + "{{ c.function.name + c.function.arguments }}{% endfor %}", "arguments_as_text"),
        (
            "{% if not m.content %}"
            + CALLS
            + "{{ c.function.name ~ (c.function.arguments | tojson) }}{% endfor %}{% endif %}",
            "text_before_calls",
        ),
        (CALLS + "{{ c.id ~ (c.function.arguments | tojson) }}{% endfor %}", "numbered_call_ids"),
        (
            CALLS + "{{ c.function | tojson }}{% endfor %}"
            "{% if m.role == 'tool' %}{{ '@' + m.name }}{% endif %}",
            "name_results",
        ),
        (
            "{% if m.tool_calls and m.tool_calls | length > 1 %}"
            "{{ raise_exception('single calls only') }}{% endif %}"
            + CALLS
            + "{{ c.function | tojson }}{% endfor %}",
            "split_calls",
        ),
        (
            "{% if m.role == 'tool' %}{{ raise_exception('no results') }}{% endif %}"
            + CALLS
            + "{{ c.function | tojson }}{% endfor %}",
            "results_in_words",
        ),
    ],
)
def test_one_step_for_one_peculiarity(body: str, found: str) -> None:
    assert steps(template(body)) == ["developer_as_system", found]


def test_a_template_of_parts_gets_parts() -> None:
    source = (
        "{% for m in messages %}{{ '<|im_start|>' ~ m.role }}{% for part in m.content %}"
        "{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
    )
    codec = codec_of(source)
    assert "content_as_parts" in codec.template_steps
    assert codec.render_chat([USER]).text == "<|im_start|>userhi"


def test_arguments_reach_a_template_that_joins_text_as_json() -> None:
    codec = codec_of(template(CALLS + "{{ c.function.name ~ c.function.arguments }}{% endfor %}"))
    function = {"name": "look", "arguments": {"at": True}}
    calls = [{"id": "1", "type": "function", "function": function}]
    text = codec.render_chat(
        [USER, {"role": "assistant", "tool_calls": calls}], add_generation_prompt=False
    ).text
    assert 'look{"at": true}' in text


def test_found_once_and_said_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    codec = codec_of(CASES["strict"])
    with caplog.at_level(logging.INFO, "mlxceld.models.chat"):
        for _ in range(2):
            codec.render_chat([USER])
            assert not codec.renders_tools or codec.template_steps
    (record,) = caplog.records
    assert record.getMessage().startswith("chat template: developer_as_system, join_leading")


def test_a_code_template_is_probed_too() -> None:
    def render(conversation: Conversation, generation: bool) -> str:
        roles = [message["role"] for message in conversation.messages]
        assert roles[0] != "system", "no system"
        return "".join(message["content"] for message in conversation.messages)

    found = find_fitting(render, knows_developer=True)
    assert found.uses("system_into_user")
    assert not found.uses("merge_users")


def test_a_cut_off_ends_the_probing() -> None:
    rendered: list[str] = []

    def render(conversation: Conversation, generation: bool) -> str:
        rendered.append(conversation.messages[0]["role"])
        raise ChatTemplateError("took too long")

    assert find_fitting(render, knows_developer=True).steps == ()
    assert len(rendered) == 1


ODD = (
    "{%- for m in messages %}{%- if m.role == 'user' and 'odd' in m.content and not loop.last"
    " and messages[loop.index0 + 1].role == 'user' %}{{ raise_exception('odd') }}{%- endif %}"
    "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{%- endfor %}"
)


def test_what_is_refused_all_the_same_is_tried_with_more_steps() -> None:
    codec = codec_of(ODD)
    assert "merge_users" not in codec.template_steps
    plain = codec.render_chat([USER, USER]).text
    assert plain.count("<|im_start|>") == 2
    odd = {"role": "user", "content": "odd"}
    assert codec.render_chat([odd, USER]).text == "<|im_start|>user\nodd\n\nhi<|im_end|>\n"


def test_the_templates_first_words_are_told() -> None:
    codec = codec_of("{{ raise_exception('only ' ~ (messages | length) ~ ' messages') }}")
    with pytest.raises(ChatTemplateError, match=r"^only 2 messages$"):
        codec.render_chat([USER, USER])


def test_a_dict_of_templates_is_one_that_takes_tools(make_codec: Any) -> None:
    codec: TextCodec = codec_of({"default": CHATML, "tool_use": QWEN3})  # type: ignore[arg-type]
    assert codec.renders_tools
    assert codec.template_variables >= {"enable_thinking", "messages"}
    text = codec.render_chat([USER], tools=[tool("look")]).text
    assert "<tools>" in text
