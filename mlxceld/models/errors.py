"""What goes wrong with a model or with a conversation rendered for it."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be found, imported or loaded; the text is one readable line."""


class ChatTemplateError(ValueError):
    """The model's chat template cannot render these messages; the text says why."""


def shown(value: object, limit: int = 60) -> str:
    """A value from a file as errors show it: one short line, whatever it is."""
    text = repr(value[: limit + 1] if isinstance(value, str | bytes | list | tuple) else value)
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def one_line(error: BaseException, limit: int = 300) -> str:
    """An exception's text on one line of at most ``limit`` characters, never empty."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
