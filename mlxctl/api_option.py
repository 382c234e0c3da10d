"""``--api``: whose body a file holds."""

from __future__ import annotations

import click

api_option = click.option(
    "--api",
    type=click.Choice(["chat", "messages", "responses", "completions"]),
    help="Whose body it is; default: what its fields tell.",
)
