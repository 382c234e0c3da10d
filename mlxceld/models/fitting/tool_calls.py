"""Steps for calls of tools and their results."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxceld.models.fitting.conversation import Conversation, Message

_NINE = re.compile(r"[A-Za-z0-9]{9}")
_LETTERS = string.digits + string.ascii_letters


def split_calls(conversation: Conversation) -> Conversation:
    """An assistant's turn has one call, and its result comes right after it.

    Text and reasoning stay with the first call. Results that belong to none come last.
    """
    split: list[Message] = []
    messages = conversation.messages
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            split.append(message)
            continue
        end = at
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results = _results_of(calls, messages[at:end])
        at = end
        for number, call in enumerate(calls):
            turn = message if number == 0 else {"role": "assistant", "content": ""}
            split += [{**turn, "tool_calls": [call]}, *results[number]]
        split += results[-1]
    return conversation.with_messages(split)


def _results_of(
    calls: Sequence[Mapping[str, Any]], results: Sequence[Message]
) -> list[list[Message]]:
    """The results of each call, by id and else by place, and at the end those of none."""
    found: list[list[Message]] = [[] for _ in range(len(calls) + 1)]
    places = {call.get("id"): number for number, call in reversed(list(enumerate(calls)))}
    for place, result in enumerate(results):
        given = result.get("tool_call_id")
        number = min(place, len(calls)) if given is None else places.get(given, len(calls))
        found[number].append(result)
    return found


def text_before_calls(conversation: Conversation) -> Conversation:
    """What the assistant says before a call is a turn of its own."""
    split: list[Message] = []
    for message in conversation.messages:
        if message.get("tool_calls") and message["content"]:
            split.append({"role": "assistant", "content": message["content"]})
            message = {**message, "content": ""}
        split.append(message)
    return conversation.with_messages(split)


def name_results(conversation: Conversation) -> Conversation:
    """The result of a tool has the tool's name."""
    names: dict[Any, Any] = {}
    last = None
    named: list[Message] = []
    for message in conversation.messages:
        for call in message.get("tool_calls") or ():
            last = call["function"].get("name")
            names[call.get("id")] = last
        if message["role"] == "tool" and not message.get("name"):
            name = names.get(message.get("tool_call_id"), last)
            message = {**message, "name": name or "tool"}
        named.append(message)
    return conversation.with_messages(named)


def short_call_ids(conversation: Conversation) -> Conversation:
    """Ids of calls are nine letters or digits, as Mistral's templates want them.

    Those that are so stay; for the others it is a hash of the id, in call and result alike.
    """
    return _with_ids(conversation, lambda given, _, __: _nine(given))


def numbered_call_ids(conversation: Conversation) -> Conversation:
    """Ids of calls are ``functions.NAME:NUMBER``, from which Kimi's templates take the name."""
    return _with_ids(conversation, lambda _, name, number: f"functions.{name}:{number}")


def _with_ids(
    conversation: Conversation, new_id: Callable[[str, object, int], str]
) -> Conversation:
    """Rewrites ids; a call without one is known by its number in the conversation."""
    ids: dict[Any, str] = {}
    unanswered: list[str] = []
    number = 0
    changed: list[Message] = []
    for message in conversation.messages:
        if calls := message.get("tool_calls"):
            renamed = []
            for call in calls:
                given = call.get("id")
                name = call["function"].get("name")
                made = new_id(str(number) if given is None else str(given), name, number)
                number += 1
                ids[given] = made
                unanswered.append(made)
                renamed.append({**call, "id": made})
            message = {**message, "tool_calls": renamed}
        elif message["role"] == "tool":
            given = message.get("tool_call_id")
            if given is None:
                found = unanswered[0] if unanswered else new_id("", message.get("name"), 0)
            else:
                found = ids.get(given) or new_id(str(given), message.get("name"), 0)
            if found in unanswered:
                unanswered.remove(found)
            message = {**message, "tool_call_id": found}
        changed.append(message)
    return conversation.with_messages(changed)


def _nine(given: str) -> str:
    if _NINE.fullmatch(given):
        return given
    number = int.from_bytes(hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest())
    letters = []
    for _ in range(9):
        number, letter = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[letter])
    return "".join(letters)
