"""How finding, importing and loading a model tell where they are."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Takes one line of text at each stage."""
