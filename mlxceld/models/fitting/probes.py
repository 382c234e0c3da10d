"""Small conversations that tell which steps a chat template needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from mlxceld.models.fitting.conversation import Conversation, Message, user_turn

TOOL = "qx7tool"
_OTHER = "qx7other"
_KEY = "qx7key"

Remedy = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """A conversation that clients send, and what has to be found in its rendering.

    ``chains`` are texts in the order in which they have to stand; ``never`` is what may not be
    there. ``remedies`` are names of steps to add, tried one after the other. ``about`` says what
    is probed.
    """

    about: str
    conversation: Conversation
    chains: tuple[tuple[str, ...], ...]
    remedies: tuple[Remedy, ...] = ()
    generation: bool = True
    never: tuple[str, ...] = ()

    def holds(self, rendering: str) -> bool:
        """Whether the rendering has all that it has to have, in order."""
        if any(text in rendering for text in self.never):
            return False
        for chain in self.chains:
            end = 0
            for text in chain:
                found = rendering.find(text, end)
                if found < 0:
                    return False
                end = found + len(text)
        return True


def probes(*, knows_developer: bool) -> Iterable[Probe]:
    """All probes, in an order in which each builds on the steps found by those before it."""
    yield _said("one turn", [_user("a")], ("content_as_parts",))
    yield _said("a system message", [_system("s"), _user("a")], ("system_into_user",))
    if knows_developer:
        developer = _message("developer", "d")
        remedy = ("developer_as_system",)
        yield _said("a developer message", [developer, _user("a")], remedy)
    yield from _tool_probes()
    yield _said("several turns", [_user("a"), _assistant("b"), _user("c")])
    yield from _neighbour_probes()
    yield from _call_probes()
    yield from _system_probes(knows_developer)
    yield _said("the assistant first", [_assistant("a"), _user("b")], ("leading_user",))
    yield _said(
        "the assistant after the system message",
        [_system("s"), _assistant("a"), _user("b")],
        ("leading_user",),
    )
    yield _said("a system message alone", [_system("s")], ("leading_user",))


def _tool_probes() -> Iterable[Probe]:
    words = ("tools_in_words", "results_in_words", "calls_in_words")
    asked = [_user("a")]
    yield Probe(
        "tools",
        Conversation([_system("s"), *asked], [_tool(TOOL)]),
        ((TOOL,),),
        (words,),
    )
    yield Probe(
        "tools without a system message",
        Conversation(asked, [_tool(TOOL)]),
        ((TOOL,),),
        (("system_for_tools",),),
    )
    bare = {"type": "function", "function": {"name": TOOL}}
    yield Probe(
        "tools without parameters", Conversation(asked, [bare]), ((TOOL,),), (("fill_tools",),)
    )


def _neighbour_probes() -> Iterable[Probe]:
    yield _said(
        "two turns of the user",
        [_user("a"), _user("b"), _assistant("c"), _user("d")],
        ("merge_users",),
    )
    yield _said(
        "two turns of the assistant",
        [_user("a"), _assistant("b"), _assistant("c"), _user("d")],
        ("merge_assistants",),
    )


def _call_probes() -> Iterable[Probe]:
    asked = _user("a")
    call = _calling(_call(TOOL, {_KEY: _text("v")}))
    result = _result("r")
    shown = ((_text("a"), TOOL), (_text("a"), _text("v")))
    forms = (
        *_subsets("arguments_as_text", "short_call_ids"),
        *_subsets("numbered_call_ids", "arguments_as_text"),
    )
    yield _with_tools("calls", [asked, call], shown, (*forms, ("calls_in_words",)), False)
    yield _with_tools(
        "calls written as JSON",
        [asked, call],
        ((_text("a"),),),
        (("arguments_as_text",),),
        False,
        never=(repr({_KEY: _text("v")}),),
    )
    yield _with_tools(
        "results of calls",
        [asked, call, result],
        (*shown, (_text("a"), TOOL, _text("r"))),
        (
            *_subsets("name_results", "short_call_ids"),
            ("results_in_words",),
            ("results_in_words", "calls_in_words"),
            ("results_in_words", "calls_in_words", "merge_users"),
        ),
    )
    yield _with_tools(
        "arguments that are no object",
        [asked, _calling(_call(TOOL, _text("v"))), result],
        ((_text("a"), _text("v")), (_text("a"), _text("r"))),
        (("wrap_unread_arguments",),),
    )
    one, other = _call(TOOL, {_KEY: _text("v")}), _call(_OTHER, {_KEY: _text("w")}, "call_b")
    answered = [_result("r"), _result("t", "call_b")]
    yield _with_tools(
        "several calls at once",
        [asked, _calling(one, other), *answered],
        ((_text("v"), _text("w"), _text("t")), (_text("v"), _text("r"), _text("t"))),
        (("split_calls",), ("merge_users",), ("split_calls", "merge_users")),
    )
    yield _with_tools(
        "the user after a result",
        [asked, call, result, _user("b")],
        ((_text("a"), _text("r"), _text("b")),),
        (("merge_users",), ("user_into_result",)),
    )
    yield _with_tools(
        "an answer after a result",
        [asked, call, result, _assistant("b"), _user("c")],
        ((_text("a"), _text("r"), _text("b"), _text("c")),),
    )
    yield _with_tools(
        "text beside calls",
        [asked, {**call, "content": _text("b")}, result],
        ((_text("a"), _text("b"), _text("r")), (_text("v"), _text("r"))),
        (("text_before_calls",),),
    )


def _system_probes(knows_developer: bool) -> Iterable[Probe]:
    yield _said(
        "two system messages",
        [_system("s"), _system("t"), _user("a")],
        ("join_leading_system",),
    )
    lates = ["system", "developer"] if knows_developer else ["system"]
    turns = [_user("a"), _assistant("b")]
    fold = ("fold_late_system",)
    both = ("fold_late_system", "merge_users")
    if knows_developer:
        yield _said(
            "a developer message after a system message",
            [_system("s"), _message("developer", "d"), _user("a")],
            ("join_leading_system",),
        )
    for role in lates:
        late = _message(role, "l")
        yield _said(f"a late {role} message", [*turns, late, _user("c")], fold)
        yield _said(
            f"a {role} message before an answer", [_user("a"), late, *turns[1:]], fold, both
        )
        yield _said(f"a {role} message at the end", [*turns, _user("c"), late], fold, both)
        called = [_user("a"), _calling(_call(TOOL, {_KEY: _text("v")})), _result("r"), late]
        yield _with_tools(
            f"a {role} message after a result",
            called,
            ((_text("a"), _text("r"), _text("l")),),
            (fold, both),
        )


def _said(about: str, messages: list[Message], *remedies: Remedy) -> Probe:
    """A probe whose texts have to be there, one after the other."""
    texts = tuple(str(message["content"]) for message in messages)
    return Probe(about, Conversation(messages), (texts,), remedies)


def _with_tools(
    about: str,
    messages: list[Message],
    chains: tuple[tuple[str, ...], ...],
    remedies: tuple[Remedy, ...] = (),
    generation: bool = True,
    *,
    never: tuple[str, ...] = (),
) -> Probe:
    # The tools have other names, so that a name in the rendering is that of a call.
    conversation = Conversation(messages, [_tool("qx7offered")])
    return Probe(about, conversation, chains, remedies, generation, never)


def _subsets(*names: str) -> tuple[Remedy, ...]:
    """Every choice of the names, small ones first."""
    return tuple(
        chosen for size in range(1, len(names) + 1) for chosen in combinations(names, size)
    )


def _text(letter: str) -> str:
    return f"qx7{letter}said"


def _message(role: str, letter: str) -> Message:
    return {"role": role, "content": _text(letter)}


def _user(letter: str) -> Message:
    return user_turn(_text(letter))


def _assistant(letter: str) -> Message:
    return _message("assistant", letter)


def _system(letter: str) -> Message:
    return _message("system", letter)


def _call(name: str, arguments: Any, given: str = "call_a") -> Message:
    function = {"name": name, "arguments": arguments}
    return {"id": f"{given}0123456789", "type": "function", "function": function}


def _calling(*calls: Message) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def _result(letter: str, given: str = "call_a") -> Message:
    return {"role": "tool", "tool_call_id": f"{given}0123456789", "content": _text(letter)}


def _tool(name: str) -> Message:
    parameters = {"type": "object", "properties": {"at": {"type": "string", "description": "d"}}}
    function = {"name": name, "description": "d", "parameters": parameters}
    return {"type": "function", "function": function}
