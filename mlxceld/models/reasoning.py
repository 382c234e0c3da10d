"""How much a model is to think: from what a client asks to what a chat template takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Every effort that a vendor's API knows, in rising order."""

_LEVELS: Mapping[str, str] = MappingProxyType(
    {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
)
"""Templates with ``reasoning_effort`` (gpt-oss) know low, medium and high."""

_BUDGETS: Mapping[str, int] = MappingProxyType(
    {"none": 0, "minimal": 512, "low": 1024, "medium": 4096, "high": 16384}
)
"""Tokens of ``thinking_budget`` for an effort; above ``high`` the template's own default holds."""

_SWITCHES = ("enable_thinking", "thinking")

_VARIABLES = frozenset({*_SWITCHES, "reasoning_effort", "thinking_budget"})


@dataclass(frozen=True, slots=True)
class ReasoningRequest:
    """What a request says of reasoning, whatever the dialect; None is silence.

    ``effort`` is one of :data:`EFFORTS`. ``enabled`` wins over it where both are given;
    ``budget_tokens`` is how many tokens the model may think.
    """

    effort: str | None = None
    enabled: bool | None = None
    budget_tokens: int | None = None

    @property
    def wanted(self) -> bool | None:
        """Whether the model is to think at all; None where nothing is said."""
        if self.enabled is not None:
            return self.enabled
        return None if self.effort is None else self.effort != "none"


def reasoning_kwargs(
    request: ReasoningRequest | None,
    variables: Collection[str],
    given: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments for a template that reads ``variables``; those already ``given`` are kept.

    ========================  ==============================================
    ``enable_thinking``       false for effort ``none`` or thinking switched off
    ``thinking``              the same (DeepSeek's name)
    ``reasoning_effort``      low, medium or high, the nearest
    ``thinking_budget``       the budget, else one that goes with the effort
    ========================  ==============================================
    """
    arguments: dict[str, Any] = {}
    if request is not None:
        wanted = request.wanted
        if wanted is not None:
            arguments.update({name: wanted for name in _SWITCHES if name in variables})
        effort = request.effort if wanted is not False else "none"
        if wanted and effort == "none":
            effort = None
        if effort is not None and "reasoning_effort" in variables:
            arguments["reasoning_effort"] = _LEVELS.get(effort, effort)
        if "thinking_budget" in variables:
            budget = request.budget_tokens if wanted is not False else 0
            if budget is None and effort is not None:
                budget = _BUDGETS.get(effort)
            if budget is not None:
                arguments["thinking_budget"] = budget
    arguments.update(given or {})
    return arguments


def template_variables(source: str) -> frozenset[str]:
    """The variables that a Jinja template reads from its arguments; none where it cannot be read.

    For templates that are Python code there is :func:`renderer_variables`.
    """
    # Imported here: it costs time that not every program with this module has.
    import jinja2
    from jinja2 import meta
    from transformers.utils import chat_template_utils

    try:
        # Its environment knows the tags that templates may have besides Jinja's own.
        environment = chat_template_utils._compile_jinja_template(source).environment
        return frozenset(meta.find_undeclared_variables(environment.parse(source)))
    except jinja2.TemplateError:
        return frozenset()


def renderer_variables(renderer: Callable[..., Any]) -> frozenset[str]:
    """Those of our variables that a template in the form of a Python function takes.

    Its parameters, and ``enable_thinking``, which mlx-lm gives to each, by the name that it has.
    """
    parameters = inspect.signature(renderer).parameters
    return frozenset({"enable_thinking", *parameters} & _VARIABLES)
