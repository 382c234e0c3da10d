"""Hands a conversation to the engine after its reply, rendered as its next turn will render it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from mlxceld.api.context import ApiContext
from mlxceld.engine.errors import EngineError
from mlxceld.engine.request import NextTurn
from mlxceld.models.continuation import Continuation

log = logging.getLogger(__name__)


def prefetch_after(
    context: ApiContext,
    continuation: Continuation,
    *,
    session: str,
    template_signature: str,
    client: str | None,
) -> Callable[[str], None] | None:
    """What to call with the reply's text, from any thread; None if nothing is to be prefetched.

    The rendering is left to a thread of its own, which holds up no request.
    """
    cache = context.settings.prompt_cache
    if cache.prefetch == "off" or not cache.enabled:
        return None

    def render(text: str) -> None:
        try:
            tokens = continuation.next_turn(text)
            context.engine.prefetch(NextTurn(tokens, session, template_signature, client))
        except EngineError as error:
            log.debug("nothing is prefetched: %s", error)
        except Exception:
            # The reply is out; what is lost is only that the next turn could have been quicker.
            log.exception("the next turn could not be rendered")

    def after(text: str) -> None:
        continuation.note_reply(text)
        # The lanes are closed before the engine is.
        with contextlib.suppress(RuntimeError):
            context.lanes.run_ahead(lambda: render(text))

    return after
