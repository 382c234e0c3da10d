"""Long answers of nothing but beginnings: each is read in one pass, and is the text that it was.

The parsers that these take the place of need minutes for such a text.
"""

from __future__ import annotations

import pytest
from test_answer_reader import TOOLS, mlx_lm, read

from mlxceld.api.reader import Reading

LENGTH = 200_000
BEGINNINGS = [
    ("function_gemma", "call:a{"),
    ("function_gemma", "call:a{b:<escape>"),
    ("gemma4", "call:a{"),
    ("gemma4", 'call:a{b:<|"|>'),
    ("gemma4", "call:a{b:["),
    ("glm47", "<arg_key>"),
    ("glm47", "<arg_key>a</arg_key>"),
    ("glm47", "<arg_key>a</arg_key><arg_value>"),
    ("laguna", "<arg_key>a</arg_key><arg_value>"),
    ("longcat", "<longcat_arg_key>a</longcat_arg_key><longcat_arg_value>"),
    ("kimi_k3", "<|open|>call"),
    ("kimi_k3", "<|open|>call x<|sep|><|open|>argument<|sep|>"),
    ("muse_spark", "<atem:invoke "),
    ("muse_spark", '<atem:invoke name="a"><atem:parameter name="b">'),
]


@pytest.mark.parametrize(("name", "beginning"), BEGINNINGS)
def test_a_text_of_beginnings_is_read_once(name: str, beginning: str) -> None:
    form = mlx_lm(name)
    body = beginning * (LENGTH // len(beginning))
    try:
        calls = form.parse(body, TOOLS)
    except ValueError:
        calls = []
    assert len(calls) <= 1


@pytest.mark.parametrize("space", ["\n", " \n\t"])
def test_blank_space_is_held_back_up_to_a_bound(space: str) -> None:
    form = mlx_lm("glm47")
    reading = Reading(calls=form, tools=TOOLS, thinking=("<think>", "</think>"))
    written = f"Well.{space * 3000}<tool_call>get_time</tool_call>"
    whole = read(reading, [written])
    assert [one.name for one in whole.calls or ()] == ["get_time"]
    assert read(reading, list(written)) == whole
    assert whole.text.startswith("Well.\n" if space == "\n" else "Well. \n")
    thought = f"<think>Hm.{space * 3000}</think>Yes."
    assert read(reading, list(thought)) == read(reading, [thought])
