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
    """The prompt leaves no room for a token in the model's context.

    Clients know both texts and act on them, by compacting the conversation for example: ``str`` has
    the words of OpenAI's API and of Anthropic's, ``summary`` begins with the latter.
    """

    def __init__(self, prompt_tokens: int, context_length: int) -> None:
        # A prompt that fills the context is too long by the one token that the answer needs.
        maximum = context_length if prompt_tokens > context_length else context_length - 1
        self.summary = f"prompt is too long: {prompt_tokens} tokens > {maximum} maximum"
        super().__init__(
            "prompt",
            f"This model's maximum context length is {context_length} tokens; the {self.summary}",
        )
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length
