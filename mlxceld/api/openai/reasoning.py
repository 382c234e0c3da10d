"""How much a chat request wants the model to think, in the fields of several vendors."""

from __future__ import annotations

from mlxceld.api.openai.schemas import ChatRequest
from mlxceld.models.reasoning import ReasoningRequest

_SWITCHED = {"enabled": True, "adaptive": True, "disabled": False}


def reasoning_of(fields: ChatRequest) -> ReasoningRequest | None:
    """What a request says of reasoning; None where it says nothing.

    OpenAI's field wins over the others, a switch over what an effort or a budget implies.
    """
    options, thinking = fields.reasoning, fields.thinking
    effort = fields.reasoning_effort or (options.effort if options else None)
    enabled = fields.enable_thinking
    if enabled is None and thinking is not None:
        enabled = _SWITCHED.get(thinking.type)
    if enabled is None and options is not None:
        enabled = options.enabled
    budget = fields.thinking_budget
    if budget is None and thinking is not None:
        budget = thinking.budget_tokens
    if budget is None and options is not None:
        budget = options.max_tokens
    if effort is None and enabled is None and budget is None:
        return None
    return ReasoningRequest(effort, enabled, budget)


def shows_reasoning(fields: ChatRequest) -> bool:
    """Whether the answer is to carry what the model thought."""
    excluded = fields.reasoning is not None and fields.reasoning.exclude is True
    return not excluded and fields.include_reasoning is not False
