"""How much to think: the fields of every vendor, to the variables of a template, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer
from tokenizers import AddedToken

from api_harness import ScriptedEngine, delta, error_of, finished, open_api, read_sse, say
from mlxceld.config import Settings
from mlxceld.engine.engine import Engine
from mlxceld.models.text import TextCodec
from tiny_models import tiny_tokenizer, write_tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}\n{% endfor %}"
    "[{{ thinking }} {{ reasoning_effort }} {{ thinking_budget }}]"
    "{% if add_generation_prompt %}\n<think>{% endif %}"
)
HELLO: list[Any] = [{"role": "user", "content": "Why?"}]
CHAT, MESSAGES, COUNT = "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"

Opened = Callable[..., AbstractAsyncContextManager[tuple[Any, ScriptedEngine]]]


@pytest.fixture
def opened(engine: Engine, settings: Callable[..., Settings], tmp_path: Path) -> Opened:
    folder = tmp_path / "thinker"
    folder.mkdir()
    write_tiny_tokenizer(folder, chat_template=TEMPLATE)
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(n, normalized=False) for n in ("<think>", "</think>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    codec = TextCodec(load_tokenizer(folder), 330)
    scripted = ScriptedEngine(codec, engine.status)
    scripted.on_submit = lambda stream: say(
        stream, delta("Hm."), delta("</think>"), delta("So."), finished()
    )

    @asynccontextmanager
    async def session(**options: Any) -> AsyncIterator[tuple[Any, ScriptedEngine]]:
        async with open_api(scripted, settings(**options)) as client:
            yield client, scripted

    return session


def variables(engine: ScriptedEngine) -> str:
    prompt = engine.text.decode(engine.requests[-1].tokens, skip_special_tokens=False)
    return prompt[prompt.index("[") + 1 : prompt.index("]")]


CHAT_CASES = [
    ({}, "  "),
    ({"reasoning_effort": None, "reasoning": None, "thinking": None}, "  "),
    ({"reasoning_effort": "none"}, "False low 0"),
    ({"reasoning_effort": "minimal"}, "True low 512"),
    ({"reasoning_effort": "low"}, "True low 1024"),
    ({"reasoning_effort": "medium"}, "True medium 4096"),
    ({"reasoning_effort": "high"}, "True high 16384"),
    ({"reasoning_effort": "xhigh"}, "True high "),
    ({"reasoning_effort": "max"}, "True high "),
    ({"reasoning": {"effort": "high"}}, "True high 16384"),
    ({"reasoning": {"enabled": False}}, "False low 0"),
    ({"reasoning": {"enabled": True, "max_tokens": 77}}, "True  77"),
    ({"thinking": {"type": "disabled"}}, "False low 0"),
    ({"thinking": {"type": "enabled", "budget_tokens": 99}}, "True  99"),
    ({"thinking": {"type": "auto"}}, "  "),
    ({"enable_thinking": False, "reasoning_effort": "high"}, "False low 0"),
    ({"enable_thinking": True, "thinking_budget": 5}, "True  5"),
    ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "True low 1024"),
    (
        {"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}},
        "True low 0",
    ),
]

MESSAGES_CASES = [
    ({}, "  "),
    ({"thinking": {"type": "disabled"}}, "False low 0"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "True  2048"),
    ({"thinking": {"type": "adaptive"}}, "True  "),
    ({"thinking": {"type": "between_tools"}}, "True  "),
    ({"output_config": {"effort": "low"}}, "True low 1024"),
    ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "True high "),
    ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, "False low 0"),
    (
        {
            "output_config": {"effort": "low"},
            "messages": [*HELLO, {"role": "system", "output_config": {"effort": "high"}}],
        },
        "True high 16384",
    ),
    (
        {
            "output_config": {"effort": "low"},
            "messages": [
                *HELLO,
                {"role": "system", "content": "x", "output_config": {"effort": "high"}},
                {"role": "assistant", "content": "So."},
                *HELLO,
            ],
        },
        "True low 1024",
    ),
]


async def test_chat(opened: Opened) -> None:
    async with opened() as (client, engine):
        for fields, shown in CHAT_CASES:
            answer = await client.post(CHAT, json={"messages": HELLO, **fields})
            assert answer.status == 200, await answer.text()
            assert (fields, variables(engine)) == (fields, shown)


async def test_messages(opened: Opened) -> None:
    async with opened() as (client, engine):
        for fields, shown in MESSAGES_CASES:
            body = {"model": "m", "max_tokens": 9, "messages": HELLO, **fields}
            answer = await client.post(MESSAGES, json=body)
            assert answer.status == 200, await answer.text()
            assert (fields, variables(engine)) == (fields, shown)
            counted = await (await client.post(COUNT, json=body)).json()
            assert counted == {"input_tokens": len(engine.requests[-1].tokens)}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"max_tokens": -1}}, "reasoning.max_tokens"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        ({"enable_thinking": "yes"}, "enable_thinking"),
    ],
)
async def test_an_unknown_effort_is_named(
    opened: Opened, fields: dict[str, Any], param: str
) -> None:
    async with opened() as (client, _):
        error = await error_of(await client.post(CHAT, json={"messages": HELLO, **fields}), 400)
        assert error["param"] == param


@pytest.mark.parametrize(
    ("fields", "alias", "shown"),
    [
        ({}, True, ["reasoning_content", "reasoning"]),
        ({}, False, ["reasoning_content"]),
        ({"reasoning": {"exclude": True}}, True, []),
        ({"include_reasoning": False}, True, []),
    ],
)
async def test_the_fields_of_an_answers_reasoning(
    opened: Opened, fields: dict[str, Any], alias: bool, shown: list[str]
) -> None:
    async with opened(reasoning_alias=alias) as (client, engine):
        body = {"messages": HELLO, **fields}
        whole = await (await client.post(CHAT, json=body)).json()
        message = whole["choices"][0]["message"]
        assert message["content"] == "So."
        thought = {name: text for name, text in message.items() if "reasoning" in name}
        assert thought == dict.fromkeys(shown, "Hm.")
        chunks = await read_sse(await client.post(CHAT, json={**body, "stream": True}))
        parts = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
        for name in ("reasoning_content", "reasoning"):
            text = "".join(part.get(name, "") for part in parts)
            assert text == ("Hm." if name in shown else "")
        # What was answered is what is taken back.
        await client.post(CHAT, json={"messages": [*HELLO, message, *HELLO]})
        prompt = engine.text.decode(engine.requests[-1].tokens, skip_special_tokens=False)
        assert ("assistant:<think>Hm.</think>So." in prompt) == bool(shown)
