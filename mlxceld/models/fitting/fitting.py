"""Which steps one chat template needs, and a conversation rendered with them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mlxceld.models.errors import ChatTemplateError
from mlxceld.models.fitting.conversation import Conversation, Step
from mlxceld.models.fitting.probes import Probe, probes
from mlxceld.models.fitting.steps import LAST_RESORT, apply, ordered

log = logging.getLogger(__name__)

RenderFitted = Callable[[Conversation], str]
"""Renders a conversation as it is; raises any exception where the template refuses."""

ProbeRender = Callable[[Conversation, bool], str]
"""The same with or without a generation prompt."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """The steps that a chat template needs, always all of them.

    ``unshown`` says which of the probed conversations no step mends: the template leaves
    something of them out, or refuses them.
    """

    steps: tuple[Step, ...] = ()
    unshown: tuple[str, ...] = ()

    @property
    def described(self) -> Mapping[str, str]:
        """The steps' names, in order, and what each does."""
        return MappingProxyType({step.name: step.about for step in self.steps})

    def uses(self, name: str) -> bool:
        """Whether a step is among them."""
        return any(step.name == name for step in self.steps)

    def render(self, conversation: Conversation, render: RenderFitted) -> str:
        """Render the fitted conversation.

        One that is refused all the same is tried with further steps, one after the other and each
        on top of those before it. Raises what the template raised at first if none helps, and a
        ChatTemplateError at once: that is not the template's own.
        """
        fitted = apply(self.steps, conversation)
        try:
            return render(fitted)
        except ChatTemplateError:
            raise
        except Exception as error:
            text = self._at_last(conversation, fitted, render)
            if text is None:
                raise
            log.debug("the chat template took a conversation only with more steps: %s", error)
            return text

    def _at_last(
        self, conversation: Conversation, refused: Conversation, render: RenderFitted
    ) -> str | None:
        names = {step.name for step in self.steps}
        for name in LAST_RESORT:
            if name in names:
                continue
            names.add(name)
            fitted = apply(ordered(names), conversation)
            if fitted == refused:
                continue
            refused = fitted
            try:
                return render(fitted)
            except ChatTemplateError:
                raise
            except Exception as error:
                log.debug("the chat template refuses a conversation with %s: %s", name, error)
        return None


def find_fitting(render: ProbeRender, *, knows_developer: bool) -> Fitting:
    """The steps that a template needs, found by rendering the probes.

    A probe fails where the template refuses it, or where a text of it is missing from the
    rendering or out of order. A step is taken only if a probe fails without it and holds with it.
    ``knows_developer`` says whether the template names that role: one that writes any role by its
    name would show its model one that it was never trained on. A ChatTemplateError of ``render``,
    which is not the template's own, ends the search.
    """
    names = frozenset() if knows_developer else frozenset({"developer_as_system"})
    unshown: list[str] = []
    for probe in probes(knows_developer=knows_developer):
        try:
            found = _remedy(probe, names, render)
        except ChatTemplateError as error:
            log.warning("the chat template cannot be probed: %s", error)
            break
        if found is None:
            unshown.append(probe.about)
        else:
            names = found
    return Fitting(ordered(names), tuple(unshown))


def _remedy(probe: Probe, names: frozenset[str], render: ProbeRender) -> frozenset[str] | None:
    """The steps with which a probe holds: ``names``, if they do, or those and as few as do it."""
    for remedy in ((), *probe.remedies):
        if _holds(probe, names.union(remedy), render):
            return names.union(remedy)
    return None


def _holds(probe: Probe, names: frozenset[str], render: ProbeRender) -> bool:
    try:
        text = render(apply(ordered(names), probe.conversation), probe.generation)
    except ChatTemplateError:
        raise
    except Exception as error:
        log.debug("probing the chat template, %s: %s", probe.about, error)
        return False
    return probe.holds(text)
