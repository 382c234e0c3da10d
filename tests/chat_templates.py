"""Chat templates in the forms that public models use, each written anew and as short as it goes.

What matters of each is how it treats a conversation's past: which parts of it the next turn writes
in another way, what ends a turn, and what begins a reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mlxceld.models.text import TextCodec


@dataclass(frozen=True)
class ChatTemplate:
    """A template's source and what it takes.

    ``rewrites``: the next turn of the user writes earlier turns in another way, so that what it
    repeats of a prompt may end before the prompt's history does.
    """

    source: str
    system: bool = True
    tools: bool = True
    rewrites: bool = False


_CALLS = (
    "{%- for call in m.tool_calls or [] %}"
    '{{ \'<tool_call>\n{"name": "\' ~ call.function.name ~ \'", "arguments": \' ~'
    " (call.function.arguments | tojson) ~ '}\n</tool_call>' }}"
    "{%- endfor %}"
)

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_QWEN_HEAD = (
    "{%- if tools %}{{ '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{ messages[0].content ~ '\n\n' }}{%- endif %}"
    "{{ '# Tools\n<tools>' }}{%- for t in tools %}{{ '\n' ~ (t | tojson) }}{%- endfor %}"
    "{{ '\n</tools><|im_end|>\n' }}"
    "{%- elif messages[0].role == 'system' %}"
    "{{ '<|im_start|>system\n' ~ messages[0].content ~ '<|im_end|>\n' }}{%- endif %}"
    "{%- set ns = namespace(last=-1) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}"
    "{%- endif %}{%- endfor %}"
)

_QWEN_TURNS = (
    "{%- for m in messages %}{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}"
    "{%- elif m.role == 'assistant' %}"
    "{%- set text = m.content %}{%- set thought = m.reasoning_content or '' %}"
    "{%- if '</think>' in text %}"
    "{%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{%- set text = text.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{ '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > ns.last and (loop.last or thought) %}"
    "{{ '<think>\n' ~ thought.strip('\n') ~ '\n</think>\n\n' ~ text.lstrip('\n') }}"
    "{%- else %}{{ text }}{%- endif %}" + _CALLS + "{{ '<|im_end|>\n' }}"
    "{%- elif m.role == 'tool' %}"
    "{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{%- endif %}"
    "{{ '\n<tool_response>\n' ~ m.content ~ '\n</tool_response>' }}"
    "{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{%- endif %}"
    "{%- endif %}{%- endfor %}"
)

QWEN3 = (
    _QWEN_HEAD + _QWEN_TURNS + "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)

QWEN3_THINKING = (
    _QWEN_HEAD
    + _QWEN_TURNS
    + "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
)

LLAMA3 = (
    "{{ '<|begin_of_text|>' }}"
    "{%- set first = 1 if messages[0].role == 'system' else 0 %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\nCutting knowledge: 2023\n\n' }}"
    "{%- if tools %}{%- for t in tools %}{{ (t | tojson) ~ '\n\n' }}{%- endfor %}{%- endif %}"
    "{%- if first %}{{ messages[0].content | trim }}{%- endif %}{{ '<|eot_id|>' }}"
    "{%- for m in messages[first:] %}"
    "{%- if m.role == 'tool' %}"
    "{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' ~ m.content ~ '<|eot_id|>' }}"
    "{%- else %}"
    "{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ (m.content | trim) }}"
    + _CALLS
    + "{{ '<|eot_id|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)

MISTRAL = (
    "{%- set first = 1 if messages[0].role == 'system' else 0 %}"
    "{%- set ns = namespace(last=-1, want='user') %}"
    "{%- for m in messages[first:] %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}"
    "{%- endif %}"
    "{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{%- if m.role != ns.want %}{{ raise_exception('roles must alternate') }}{%- endif %}"
    "{%- set ns.want = 'assistant' if m.role == 'user' else 'user' %}{%- endif %}{%- endfor %}"
    "{{ '<s>' }}{%- for m in messages[first:] %}"
    "{%- if m.role == 'user' %}"
    "{%- if tools and loop.index0 == ns.last %}"
    "{{ '[AVAILABLE_TOOLS] ' ~ (tools | tojson) ~ '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{{ '[INST] ' }}{%- if first and loop.index0 == ns.last %}"
    "{{ messages[0].content ~ '\n\n' }}{%- endif %}{{ m.content ~ '[/INST]' }}"
    "{%- elif m.role == 'assistant' and m.tool_calls %}"
    "{{ '[TOOL_CALLS] ' ~ (m.tool_calls | tojson) ~ '</s>' }}"
    "{%- elif m.role == 'assistant' %}{{ ' ' ~ (m.content | trim) ~ '</s>' }}"
    "{%- else %}{{ '[TOOL_RESULTS] ' ~ m.content ~ '[/TOOL_RESULTS]' }}{%- endif %}"
    "{%- endfor %}"
)

LLAMA2 = (
    "{%- if messages[0].role == 'system' %}{%- set rest = messages[1:] %}"
    "{%- set sys = '<<SYS>>\n' ~ messages[0].content ~ '\n<</SYS>>\n\n' %}"
    "{%- else %}{%- set rest = messages %}{%- set sys = '' %}{%- endif %}"
    "{%- for m in rest %}"
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{%- endif %}"
    "{%- if m.role == 'user' %}"
    "{{ '<s>[INST] ' ~ (sys if loop.first else '') ~ (m.content | trim) ~ ' [/INST]' }}"
    "{%- else %}{{ ' ' ~ (m.content | trim) ~ ' </s>' }}{%- endif %}{%- endfor %}"
)

_GEMMA_TURNS = (
    "{%- for m in rest %}"
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{%- endif %}"
    "{{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\n' }}"
    "{{ (sys if loop.first else '') ~ (m.content | trim) ~ '<end_of_turn>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{%- endif %}"
)

GEMMA2 = (
    "{{ '<bos>' }}{%- if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{%- endif %}"
    "{%- set rest = messages %}{%- set sys = '' %}" + _GEMMA_TURNS
)

GEMMA3 = (
    "{{ '<bos>' }}{%- if messages[0].role == 'system' %}{%- set rest = messages[1:] %}"
    "{%- set sys = messages[0].content ~ '\n\n' %}"
    "{%- else %}{%- set rest = messages %}{%- set sys = '' %}{%- endif %}" + _GEMMA_TURNS
)

DEEPSEEK_R1 = (
    "{%- set ns = namespace(sys='', tool=false, outputs=false) %}"
    "{%- for m in messages %}{%- if m.role == 'system' %}{%- set ns.sys = ns.sys ~ m.content %}"
    "{%- endif %}{%- endfor %}{{ '<s>' ~ ns.sys }}"
    "{%- if tools %}{{ '\n## Tools\n' ~ (tools | tojson) }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' %}"
    "{%- if ns.outputs %}{{ '<|tool_outputs_end|>' }}{%- set ns.outputs = false %}{%- endif %}"
    "{%- set ns.tool = false %}{{ '<|User|>' ~ m.content }}"
    "{%- elif m.role == 'assistant' and m.tool_calls %}"
    "{%- if ns.outputs %}{{ '<|tool_outputs_end|>' }}{%- set ns.outputs = false %}"
    "{%- else %}{{ '<|Assistant|>' }}{%- endif %}"
    "{{ m.content }}" + _CALLS + "{{ '<|end_of_sentence|>' }}"
    "{%- elif m.role == 'assistant' %}"
    "{%- set text = m.content.split('</think>')[-1] %}"
    "{%- if ns.outputs %}{{ '<|tool_outputs_end|>' ~ text ~ '<|end_of_sentence|>' }}"
    "{%- set ns.outputs = false %}"
    "{%- else %}{{ '<|Assistant|>' ~ text ~ '<|end_of_sentence|>' }}{%- endif %}"
    "{%- elif m.role == 'tool' %}"
    "{%- if not ns.outputs %}{{ '<|tool_outputs_begin|>' }}{%- set ns.outputs = true %}"
    "{%- endif %}{{ '<|tool_output|>' ~ m.content }}{%- set ns.tool = true %}"
    "{%- endif %}{%- endfor %}"
    "{%- if ns.outputs and add_generation_prompt %}{{ '<|tool_outputs_end|>' }}{%- endif %}"
    "{%- if add_generation_prompt and not ns.tool %}{{ '<|Assistant|><think>\n' }}{%- endif %}"
)

GLM4 = (
    "{{ '[gMASK]<sop>' }}{%- if tools %}{{ '<|system|>\n# Tools\n' }}"
    "{%- for t in tools %}{{ (t | tojson) ~ '\n' }}{%- endfor %}{%- endif %}"
    "{%- set ns = namespace(last=-1) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}"
    "{%- endif %}{%- endfor %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}"
    "{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|observation|>' }}{%- endif %}"
    "{{ '\n<tool_response>\n' ~ m.content ~ '\n</tool_response>' }}"
    "{%- elif m.role == 'assistant' %}{{ '<|assistant|>' }}"
    "{%- set text = m.content %}{%- set thought = m.reasoning_content or '' %}"
    "{%- if '</think>' in text %}"
    "{%- set thought = text.split('</think>')[0].split('<think>')[-1] %}"
    "{%- set text = text.split('</think>')[-1] %}{%- endif %}"
    "{%- if loop.index0 > ns.last and thought %}{{ '\n<think>' ~ thought.strip() ~ '</think>' }}"
    "{%- else %}{{ '\n<think></think>' }}{%- endif %}"
    "{%- if text.strip() %}{{ '\n' ~ text.strip() }}{%- endif %}" + _CALLS + "{%- else %}"
    "{{ '<|' ~ m.role ~ '|>\n' ~ m.content }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|assistant|>' }}{%- endif %}"
)

PHI4 = (
    "{%- for m in messages %}{{ '<|im_start|>' ~ m.role ~ '<|im_sep|>' ~ m.content }}"
    "{%- if m.role == 'system' and tools %}{{ '<|tool|>' ~ (tools | tojson) ~ '<|/tool|>' }}"
    "{%- endif %}" + _CALLS + "{{ '<|im_end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{%- endif %}"
)

GPT_OSS = (
    "{{ '<|start|>system<|message|>You are ChatGPT.\nReasoning: '"
    " ~ (reasoning_effort or 'medium') ~ '<|end|>' }}"
    "{%- if messages[0].role in ('system', 'developer') or tools %}"
    "{{ '<|start|>developer<|message|>' }}"
    "{%- if messages[0].role in ('system', 'developer') %}"
    "{{ '# Instructions\n\n' ~ messages[0].content ~ '\n\n' }}{%- endif %}"
    "{%- if tools %}{{ '# Tools\n\n' ~ (tools | tojson) }}{%- endif %}{{ '<|end|>' }}{%- endif %}"
    "{%- set ns = namespace(name='', final=-1) %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' and not m.tool_calls %}"
    "{%- set ns.final = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'user' %}{{ '<|start|>user<|message|>' ~ m.content ~ '<|end|>' }}"
    "{%- elif m.role == 'assistant' and m.tool_calls %}"
    "{%- set call = m.tool_calls[0].function %}{%- set ns.name = call.name %}"
    "{%- if m.reasoning_content and loop.index0 > ns.final %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' ~ m.reasoning_content ~ '<|end|>' }}"
    "{%- endif %}"
    "{{ '<|start|>assistant to=functions.' ~ call.name ~ '<|channel|>commentary json<|message|>'"
    " ~ (call.arguments | tojson) ~ '<|call|>' }}"
    "{%- elif m.role == 'assistant' %}"
    "{%- if loop.last and not add_generation_prompt %}"
    "{%- if m.reasoning_content %}{{ '<|start|>assistant<|channel|>analysis<|message|>'"
    " ~ m.reasoning_content ~ '<|end|>' }}{%- endif %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ '<|return|>' }}"
    "{%- else %}{{ '<|start|>assistant<|channel|>final<|message|>' ~ m.content ~ '<|end|>' }}"
    "{%- endif %}"
    "{%- elif m.role == 'tool' %}{{ '<|start|>functions.' ~ ns.name ~ ' to=assistant"
    "<|channel|>commentary<|message|>' ~ (m.content | tojson) ~ '<|end|>' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{%- endif %}"
)

ZEPHYR = (
    "{% for m in messages %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)

PLAIN = (
    "{% for m in messages %}{{ m.role ~ ': ' ~ (m.content | trim) ~ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
"""Without any special token: what stands between turns fuses with what is said."""

TEMPLATES: dict[str, ChatTemplate] = {
    "chatml": ChatTemplate(CHATML),
    "qwen3": ChatTemplate(QWEN3, rewrites=True),
    "qwen3-thinking": ChatTemplate(QWEN3_THINKING, rewrites=True),
    "llama3": ChatTemplate(LLAMA3),
    "mistral": ChatTemplate(MISTRAL, rewrites=True),
    "llama2": ChatTemplate(LLAMA2, tools=False),
    "gemma2": ChatTemplate(GEMMA2, system=False, tools=False),
    "gemma3": ChatTemplate(GEMMA3, tools=False),
    "deepseek-r1": ChatTemplate(DEEPSEEK_R1),
    "glm4": ChatTemplate(GLM4, rewrites=True),
    "phi4": ChatTemplate(PHI4),
    "gpt-oss": ChatTemplate(GPT_OSS, rewrites=True),
    "zephyr": ChatTemplate(ZEPHYR),
    "plain": ChatTemplate(PLAIN),
}

CASES: dict[str, str] = {
    path.stem: path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).with_name("case_templates").glob("*.jinja"))
}
"""Templates that refuse or leave out what many clients send, each in its own way."""

_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|begin_of_text|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>", "[INST]", "[/INST]",
    "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "<bos>", "<start_of_turn>", "<end_of_turn>", "<|User|>", "<|Assistant|>",
    "<|end_of_sentence|>", "<|tool_outputs_begin|>", "<|tool_outputs_end|>", "<|tool_output|>",
    "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|start|>",
    "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>",
)  # fmt: skip

_CHANNELS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>")

_CORPUS = (
    "You are a helpful assistant.\n\nThe user asks, and the assistant answers: yes, no, perhaps.\n",
    "user\nHello there!\nassistant\nRight.\n\nSo, what is it? 1. One 2. Two\n\n\n  indented text\n",
    '{"name": "look", "arguments": {"at": "the weather", "days": 3}}\n\n```python\nprint(1)\n```\n',
    "tool\nsunny and warm\n\tsystem: Cutting knowledge\nReasoning: medium\n # Tools\n## Tools\n",
)


@cache
def merging_tokenizer(*, words: bool = True, channels: bool = True) -> Tokenizer:
    """A byte-level tokenizer with merges, and every special token of the templates.

    Without ``channels`` those of channel messages are left out, by which a model is known to write
    them.

    With ``words`` merges stay within words and runs of space, as in most models; without, they
    cross every border but a special token's.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = (
        pre_tokenizers.ByteLevel(add_prefix_space=False)
        if words
        else pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"[\s\S]{1,2000}"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([text * 3 for text in _CORPUS], trainer)
    special = [t for t in _SPECIAL if channels or t not in _CHANNELS]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    # Tokens of their own, but text all the same.
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>")])
    return tokenizer


def codec_of(source: str, *, words: bool = True, channels: bool = True) -> TextCodec:
    """The text codec of a model with this chat template."""
    inner = PreTrainedTokenizerFast(
        tokenizer_object=merging_tokenizer(words=words, channels=channels),
        eos_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
        chat_template=source,
    )
    return TextCodec(TokenizerWrapper(inner), 1024)


def tool(name: str) -> dict[str, Any]:
    """A tool as a client declares it."""
    parameters = {"type": "object", "properties": {"at": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def call(name: str, argument: str) -> dict[str, Any]:
    """One call of a tool, as a message carries it."""
    function = {"name": name, "arguments": f'{{"at": "{argument}"}}'}
    return {"id": "call00001", "type": "function", "function": function}
