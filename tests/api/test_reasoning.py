"""A model that thinks before it answers, in every dialect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from mlx_lm.utils import load_tokenizer
from openai import AsyncOpenAI
from tokenizers import AddedToken

from api_harness import ScriptedEngine, delta, finished, open_api, say
from mlxceld.config import Settings
from mlxceld.engine.constraint import make_constraint
from mlxceld.engine.engine import Engine
from mlxceld.models.text import TextCodec
from tiny_models import tiny_tokenizer, write_tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['reasoning_content'] %}<think>{{ m['reasoning_content'] }}</think>{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% else %}<think></think>{% endif %}{% endif %}"
)
HELLO: list[Any] = [{"role": "user", "content": "Why?"}]


@pytest.fixture
async def told(
    engine: Engine, settings: Callable[..., Settings], tmp_path: Path
) -> AsyncIterator[tuple[str, ScriptedEngine]]:
    write_tiny_tokenizer(tmp_path, chat_template=TEMPLATE)
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(n, normalized=False) for n in ("<think>", "</think>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    codec = TextCodec(load_tokenizer(tmp_path), 330)
    scripted = ScriptedEngine(codec, engine.status)
    scripted.on_submit = lambda stream: say(
        stream, *(delta(t) for t in ("Hm,\n", "so", "</th", "ink>\n", "\nBecause.")), finished()
    )
    async with open_api(scripted, settings()) as client:
        yield str(client.make_url("/")), scripted


async def test_chat(told: tuple[str, ScriptedEngine]) -> None:
    url, engine = told
    async with AsyncOpenAI(base_url=f"{url}v1", api_key="k") as ai:
        whole: Any = await ai.chat.completions.create(model="m", messages=HELLO)
        message = whole.choices[0].message
        assert (message.reasoning_content, message.content) == ("Hm,\nso", "Because.")
        parts: list[Any] = [
            chunk.choices[0].delta
            async for chunk in await ai.chat.completions.create(
                model="m", messages=HELLO, stream=True
            )
        ]
        assert "".join(getattr(p, "reasoning_content", None) or "" for p in parts) == "Hm,\nso"
        assert "".join(part.content or "" for part in parts) == "Because."
        back = {"role": "assistant", "content": "Because.", "reasoning_content": "Hm,\nso"}
        await ai.chat.completions.create(model="m", messages=[*HELLO, back, *HELLO])
    text = engine.text.decode(engine.requests[-1].tokens)
    assert "<think>Hm,\nso</think>Because." in text


async def test_messages(told: tuple[str, ScriptedEngine]) -> None:
    url, engine = told
    async with AsyncAnthropic(base_url=url, api_key="k") as ai:
        whole = await ai.messages.create(model="m", max_tokens=9, messages=HELLO)
        async with ai.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream:
            streamed = await stream.get_final_message()
        for message in (whole, streamed):
            thought, text = message.content
            assert thought.type == "thinking"
            assert text.type == "text"
            assert (thought.thinking, text.text) == ("Hm,\nso", "Because.")
        await ai.messages.create(
            model="m", max_tokens=9, messages=HELLO, thinking={"type": "disabled"}
        )
    on, _, off = (engine.text.decode(request.tokens) for request in engine.requests)
    assert on.endswith("<think>\n")
    assert off.endswith("<think></think>")


async def test_responses(told: tuple[str, ScriptedEngine]) -> None:
    url, engine = told
    async with AsyncOpenAI(base_url=f"{url}v1", api_key="k") as ai:
        async with ai.responses.stream(model="m", input="Why?") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        thought, message = final.output
        assert thought.type == "reasoning"
        assert thought.content is not None
        assert thought.content[0].text == "Hm,\nso"
        assert message.type == "message"
        assert final.output_text == "Because."
        assert "response.reasoning_text.delta" in kinds
        assert "response.reasoning_text.done" in kinds
        items: Any = [*HELLO, *final.output, *HELLO]
        await ai.responses.create(model="m", input=items, reasoning={"effort": "none"})
    text = engine.text.decode(engine.requests[-1].tokens)
    assert "<think>Hm,\nso</think>Because." in text
    assert text.endswith("<think></think>")


async def test_a_schema_waits_for_the_end_of_reasoning(told: tuple[str, ScriptedEngine]) -> None:
    url, engine = told
    form: Any = {"type": "json_object"}
    async with AsyncOpenAI(base_url=f"{url}v1", api_key="k") as ai:
        for thinks in (True, False):
            await ai.chat.completions.create(
                model="m",
                messages=HELLO,
                response_format=form,
                extra_body={"chat_template_kwargs": {"enable_thinking": thinks}},
            )
    free, held = (request.constraint for request in engine.requests)
    assert free is not None
    assert held is not None
    letter = ord("a")
    assert make_constraint(engine.text, free).mask()[letter // 8] >> letter % 8 & 1
    assert not make_constraint(engine.text, held).mask()[letter // 8] >> letter % 8 & 1
