"""Foretells the turn after a reply, and has the engine compute it ahead when there is time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from mlxceld.api.reading import reply_message
from mlxceld.engine.errors import EngineError
from mlxceld.engine.request import ContinuationSpec, GenerationRequest, NextTurn
from mlxceld.models.continuation import Continuation

if TYPE_CHECKING:
    from mlxceld.api.context import ApiContext
    from mlxceld.engine.next_turns import NextTurns
    from mlxceld.models.text import TextCodec

log = logging.getLogger(__name__)


class RenderedNextTurns:
    """One request's next turn, rendered from its specification; see :class:`NextTurns`."""

    def __init__(
        self, context: ApiContext, continuation: Continuation, request: GenerationRequest
    ) -> None:
        self._context = context
        self._continuation = continuation
        self._request = request

    def keeps(self, tokens: Sequence[int]) -> int:
        """See :class:`~mlxceld.engine.next_turns.NextTurns`."""
        return self._continuation.keeps(tokens)

    def replied(self, text: str) -> None:
        """See :class:`~mlxceld.engine.next_turns.NextTurns`.

        The rendering is left to a thread of its own, which holds up no request.
        """
        self._continuation.note_reply(text)
        spec, cache = self._request.continuation, self._context.settings.prompt_cache
        if spec is None or not spec.ahead or cache.prefetch == "off" or not cache.enabled:
            return
        # The lanes are closed before the engine is.
        with contextlib.suppress(RuntimeError):
            self._context.lanes.run_ahead(lambda: self._render(text))

    def _render(self, text: str) -> None:
        request = self._request
        try:
            tokens = self._continuation.next_turn(text)
            self._context.engine.prefetch(
                NextTurn(tokens, request.session, request.template_signature, request.client)
            )
        except EngineError as error:
            log.debug("nothing is prefetched: %s", error)
        except Exception:
            # The reply is out; what is lost is only that the next turn could have been quicker.
            log.exception("the next turn could not be rendered")


def make_next_turns(context: ApiContext, request: GenerationRequest) -> NextTurns | None:
    """What foretells a request's next turn; None for what is no conversation."""
    spec = request.continuation
    if spec is None:
        return None
    return RenderedNextTurns(context, continuation_of(context.engine.text, spec), request)


def continuation_of(codec: TextCodec, spec: ContinuationSpec) -> Continuation:
    """What foretells the turn after a conversation, made of its specification."""
    return Continuation(
        codec,
        spec.messages,
        prompt_tokens=spec.prompt_tokens,
        repeated_tokens=spec.repeated_tokens,
        tools=spec.tools,
        template_kwargs=spec.template_kwargs,
        continues=spec.continues,
        read_reply=partial(reply_message, codec, spec.reply, spec.messages, spec.tools),
    )
