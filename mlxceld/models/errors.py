"""What goes wrong with a model or with a conversation rendered for it."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be found, imported or loaded; the text is one readable line."""


class ChatTemplateError(ValueError):
    """The model's chat template cannot render these messages; the text says why."""


class RenderingCutOffError(ChatTemplateError):
    """A rendering took more steps, time or room than it may, or nobody waits for it any more.

    ``timed_out`` where it was the request's own time that was over.
    """

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


def shown(value: object, limit: int = 60) -> str:
    """A value from a file as errors show it: one short line, whatever it is."""
    text = repr(value[: limit + 1] if isinstance(value, str | bytes | list | tuple) else value)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(error: BaseException, limit: int = 300) -> str:
    """An exception's text on one line of at most ``limit`` characters, never empty."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
