"""Why the engine does not take a request."""

from __future__ import annotations


class EngineError(Exception):
    """Base of what :meth:`Engine.submit` raises."""


class QueueFullError(EngineError):
    """The waiting queue is at its limit."""

    def __init__(self, waiting: int, limit: int, retry_after: int) -> None:
        super().__init__(f"{waiting} requests are waiting; the limit is {limit}")
        self.waiting = waiting
        self.limit = limit
        self.retry_after = retry_after
        """Seconds after which a retry is sensible."""


class NotReadyError(EngineError):
    """The engine is loading, draining or stopped; the text says which."""


class InvalidRequestError(EngineError):
    """A request that this model cannot take; ``param`` names the offending part."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(InvalidRequestError):
    """The prompt leaves no room for a token in the model's context."""

    def __init__(self, prompt_tokens: int, context_length: int) -> None:
        super().__init__(
            "prompt",
            f"the prompt has {prompt_tokens} tokens, and this model's context holds"
            f" {context_length}, of which one is needed for the answer",
        )
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length
