"""All steps of a fitting, in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Collection

from mlxceld.models import tool_prompt
from mlxceld.models.fitting import arguments, system_texts, tool_calls, tool_fields, turns
from mlxceld.models.fitting.conversation import Conversation, Step


def _content_as_parts(conversation: Conversation) -> Conversation:
    """Content is a list of text parts."""
    return conversation.with_messages(
        [
            {**message, "content": [{"type": "text", "text": message["content"]}]}
            if isinstance(message["content"], str)
            else message
            for message in conversation.messages
        ]
    )


STEPS: tuple[Step, ...] = (
    Step(
        "developer_as_system",
        "developer messages are system messages",
        system_texts.developer_as_system,
    ),
    Step(
        "fill_tools",
        "tools get an empty description and empty parameters where they have none",
        tool_fields.fill_tools,
    ),
    Step(
        "system_for_tools",
        "an empty system message where there are tools and none",
        system_texts.system_for_tools,
    ),
    Step(
        "tools_in_words",
        "the system message describes the tools",
        tool_prompt.tools_in_words,
    ),
    Step(
        "results_in_words",
        "results of tools are turns of the user",
        tool_prompt.results_in_words,
    ),
    Step(
        "calls_in_words",
        "calls of tools are text of the assistant",
        tool_prompt.calls_in_words,
    ),
    Step(
        "split_calls",
        "one call an assistant message, its result right after it",
        tool_calls.split_calls,
    ),
    Step(
        "text_before_calls",
        "text beside calls is an assistant message before them",
        tool_calls.text_before_calls,
    ),
    Step(
        "join_leading_system",
        "system messages at the beginning are joined",
        system_texts.join_leading_system,
    ),
    Step(
        "system_into_user",
        "system text stands in front of the first turn of the user",
        system_texts.system_into_user,
    ),
    Step(
        "fold_late_system",
        "later system messages are marked text of the user's side, in place",
        system_texts.fold_late_system,
    ),
    Step(
        "leading_user",
        "a turn of the user comes first, if only a dot",
        turns.leading_user,
    ),
    Step("merge_users", "turns of the user in a row are one", turns.merge_users),
    Step(
        "user_into_result",
        "what the user says right after a tool's result is added to the result",
        turns.user_into_result,
    ),
    Step("merge_assistants", "turns of the assistant in a row are one", turns.merge_assistants),
    Step("name_results", "results of tools get the tool's name", tool_calls.name_results),
    Step(
        "short_call_ids",
        "ids of calls are nine letters or digits",
        tool_calls.short_call_ids,
    ),
    Step(
        "numbered_call_ids",
        "ids of calls are functions.NAME:NUMBER",
        tool_calls.numbered_call_ids,
    ),
    Step(
        "wrap_unread_arguments",
        "arguments that are no JSON object stand as text in one",
        arguments.wrap_unread_arguments,
    ),
    Step(
        "arguments_as_text",
        "arguments of calls are JSON text",
        arguments.arguments_as_text,
    ),
    Step("content_as_parts", "content is a list of text parts", _content_as_parts),
)

LAST_RESORT = (
    "fill_tools",
    "join_leading_system",
    "fold_late_system",
    "merge_users",
    "merge_assistants",
    "user_into_result",
    "leading_user",
    "split_calls",
    "name_results",
    "wrap_unread_arguments",
    "arguments_as_text",
    "short_call_ids",
    "text_before_calls",
    "system_into_user",
    "results_in_words",
    "calls_in_words",
)
"""Steps for a conversation that is refused all the same, in the order in which they are added.

None of them changes in what form the model is asked to write its calls.
"""


def ordered(names: Collection[str]) -> tuple[Step, ...]:
    """The steps of these names, in the order in which they are applied."""
    return tuple(step for step in STEPS if step.name in names)


def apply(steps: Collection[Step], conversation: Conversation) -> Conversation:
    """The conversation after all of ``steps``, in their order."""
    for step in steps:
        conversation = step.apply(conversation)
    return conversation
