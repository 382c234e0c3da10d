"""Whether a model can take a request. No MLX in here: this runs before anything is queued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxceld.engine.errors import ContextLengthError, InvalidRequestError

if TYPE_CHECKING:
    from mlxceld.engine.request import GenerationRequest
    from mlxceld.telemetry.status import ModelStatus


def token_limit(request: GenerationRequest, model: ModelStatus) -> int:
    """How many tokens a request may generate: what it asks for, cut to the model's context.

    Raises InvalidRequestError or ContextLengthError for what this model cannot take.
    """
    context, vocab = model.context_length, model.vocab_size
    if not request.tokens:
        raise InvalidRequestError("prompt", "the prompt is empty; at least one token is needed")
    if len(request.tokens) >= context:
        raise ContextLengthError(len(request.tokens), context)
    if (worst := max(request.tokens)) >= vocab or (worst := min(request.tokens)) < 0:
        raise InvalidRequestError(
            "prompt", f"token id {worst} is not in the vocabulary; valid ids are 0 to {vocab - 1}"
        )
    for token in request.sampling.logit_bias:
        if not 0 <= token < vocab:
            raise InvalidRequestError(
                "logit_bias",
                f"token id {token} is not in the vocabulary; valid ids are 0 to {vocab - 1}",
            )
    room = context - len(request.tokens)
    wanted = request.sampling.max_tokens
    return room if wanted is None else min(wanted, room)
