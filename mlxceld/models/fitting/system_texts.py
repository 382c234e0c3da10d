"""Steps for system and developer texts."""

from __future__ import annotations

from mlxceld.models.fitting.conversation import (
    SYSTEM_ROLES,
    Conversation,
    Message,
    join_texts,
    leading_system,
    user_turn,
)


def developer_as_system(conversation: Conversation) -> Conversation:
    """Developer texts are system texts."""
    return conversation.with_messages(
        [
            {**message, "role": "system"} if message["role"] == "developer" else message
            for message in conversation.messages
        ]
    )


def join_leading_system(conversation: Conversation) -> Conversation:
    """The system texts at the beginning are one, parted by blank lines."""
    messages = conversation.messages
    count = leading_system(messages)
    if count < 2:
        return conversation
    text = join_texts(*(str(message["content"]) for message in messages[:count]))
    return conversation.with_messages([{**messages[0], "content": text}, *messages[count:]])


def system_for_tools(conversation: Conversation) -> Conversation:
    """A conversation with tools begins with a system message, if only an empty one."""
    if not conversation.tools or leading_system(conversation.messages):
        return conversation
    empty = {"role": "system", "content": ""}
    return conversation.with_messages([empty, *conversation.messages])


def system_into_user(conversation: Conversation) -> Conversation:
    """The system texts at the beginning stand in front of the first turn of the user.

    They are a turn of the user by themselves where another one's turn comes first.
    """
    messages = conversation.messages
    count = leading_system(messages)
    text = join_texts(*(str(message["content"]) for message in messages[:count]))
    rest = messages[count:]
    if not text:
        return conversation.with_messages(rest) if count and rest else conversation
    if rest and rest[0]["role"] == "user":
        first = {**rest[0], "content": join_texts(text, rest[0]["content"])}
        return conversation.with_messages([first, *rest[1:]])
    return conversation.with_messages([user_turn(text), *rest])


def fold_late_system(conversation: Conversation) -> Conversation:
    """Later system texts stand where they are, as marked texts on the user's side.

    They go in front of the turn that directly follows, if that is the user's or the result of a
    tool; else they are a turn of the user by themselves. No text ever moves past another.
    """
    messages = conversation.messages
    leading = leading_system(messages)
    if not any(message["role"] in SYSTEM_ROLES for message in messages[leading:]):
        return conversation
    folded = messages[:leading]
    waiting: list[str] = []
    for message in messages[leading:]:
        if message["role"] in SYSTEM_ROLES:
            if message["content"]:
                waiting.append(_marked(message["content"]))
        elif waiting and message["role"] in ("user", "tool"):
            folded.append({**message, "content": join_texts(*waiting, message["content"])})
            waiting = []
        else:
            folded += _own_turn(waiting)
            waiting = []
            folded.append(message)
    return conversation.with_messages([*folded, *_own_turn(waiting)])


def _own_turn(texts: list[str]) -> list[Message]:
    return [user_turn(join_texts(*texts))] if texts else []


def _marked(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"
