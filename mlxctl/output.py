"""Data to stdout as a table, JSON or YAML; messages and errors to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import click

from mlxctl.errors import CtlError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

FORMATS = ("table", "json", "yaml")

_PIPE_WIDTH = 400
"""Columns where there is no terminal to fit: wide enough to cut nothing."""


class Output:
    """Writes in one format; colour only on a terminal, and not with ``NO_COLOR``."""

    def __init__(self, form: str = "table", *, colour: bool = True) -> None:
        self.form = form
        self.colour = colour

    def show(self, data: Any, table: Callable[[], RenderableType]) -> None:
        """Print one answer whole: the API's own keys, or the table made of them."""
        if self.form == "json":
            click.echo(json.dumps(data, indent=2))
        elif self.form == "yaml":
            click.echo(_yaml(data), nl=False)
        else:
            self._print(table())

    def stream(self, data: Any, table: Callable[[], RenderableType]) -> None:
        """Print one of many answers: a line of JSON, or a document of YAML."""
        if self.form == "json":
            click.echo(json.dumps(data))
        elif self.form == "yaml":
            click.echo("---\n" + _yaml(data), nl=False)
        else:
            self._print(table())

    def message(self, text: str) -> None:
        """Tell the person something that is not data."""
        click.echo(text, err=True)

    def error(self, error: CtlError) -> None:
        """Report a failure: in JSON mode as the API's own shape of error."""
        if self.form == "json":
            body: dict[str, Any] = {"code": error.code, "message": error.message}
            body["details"] = {**error.details, "hint": error.hint} if error.hint else error.details
            click.echo(json.dumps({"error": body}), err=True)
            return
        click.echo(f"mlxctl: {error.message}", err=True)
        if error.hint:
            click.echo(f"  {error.hint}", err=True)

    def console(self) -> Console:
        """A rich console on stdout."""
        from rich.console import Console

        live = _is_terminal(sys.stdout)
        return Console(
            file=sys.stdout,
            color_system="auto" if self.colour and live and _colour_wanted() else None,
            force_terminal=live,
            width=None if live else _PIPE_WIDTH,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=False,
        )

    def _print(self, what: RenderableType) -> None:
        console = self.console()
        if console.is_terminal:
            console.print(what)
            return
        with console.capture() as captured:
            console.print(what)
        # A table fills its columns with blanks, which only a terminal has a use for.
        click.echo("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()), nl=False)


def _is_terminal(stream: TextIO | None) -> bool:
    # There is no stream where the caller has closed it.
    return stream is not None and stream.isatty()


def _colour_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _yaml(data: Any) -> str:
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
