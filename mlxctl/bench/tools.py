"""The tools of the agent's scenario: as the API has them, or in words.

A model whose chat template has no place for tools gets them in words, in messages that every
server renders alike; what a server would make of them by itself differs between servers.
"""

from __future__ import annotations

import json
import random
from typing import Any

from mlxctl.bench.texts import WORDS

Message = dict[str, Any]


def _tool(name: str, about: str, argument: str) -> Message:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"}},
        "required": [argument],
    }
    return {
        "type": "function",
        "function": {"name": name, "description": about, "parameters": parameters},
    }


TOOLS = (
    _tool("read_file", "Read a file of the project.", "path"),
    _tool("search", "Find the lines that a pattern matches.", "pattern"),
    _tool("run_tests", "Run the tests below a folder.", "folder"),
)


def seeded_call(rng: random.Random, number: int) -> Message:
    """A call of one of the tools, with arguments that are drawn."""
    function = rng.choice(TOOLS)["function"]
    (argument,) = function["parameters"]["properties"]
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {
            "name": function["name"],
            "arguments": json.dumps({argument: "/".join(rng.sample(WORDS, 3))}),
        },
    }


def assistant_message(text: str, call: Message | None, *, native: bool) -> Message:
    """What an assistant answered, with the call that it is given to have made."""
    if call is None:
        return {"role": "assistant", "content": text}
    if native:
        return {"role": "assistant", "content": text, "tool_calls": [call]}
    function = call["function"]
    body = json.dumps({"name": function["name"], "arguments": json.loads(function["arguments"])})
    words = f"<tool_call>\n{body}\n</tool_call>"
    return {"role": "assistant", "content": f"{text}\n{words}" if text else words}


def result_message(call: Message, result: str, *, native: bool) -> Message:
    """What a call gave."""
    if native:
        return {"role": "tool", "tool_call_id": call["id"], "content": result}
    return {"role": "user", "content": f"<tool_response>\n{result}\n</tool_response>"}


def in_system_message(system: Message) -> Message:
    """A system message that names the tools."""
    listed = "\n".join(json.dumps(tool["function"]) for tool in TOOLS)
    words = (
        "You may call these functions, each by one JSON object with its name and arguments"
        f" between <tool_call> and </tool_call>:\n{listed}"
    )
    return {**system, "content": f"{system['content']}\n\n{words}"}
