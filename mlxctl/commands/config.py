"""``mlxctl config``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlxctl import tables
from mlxctl.context import Ctl, pass_ctl
from mlxctl.options import CtlGroup

if TYPE_CHECKING:
    from rich.table import Table


@click.group(cls=CtlGroup)
def config() -> None:
    """Look at the daemon's settings."""


@config.command()
@pass_ctl
def show(ctl: Ctl) -> None:
    """Show the settings in force.

    Each with its source: flag, env, file or default.
    """
    answer = ctl.client.get("config")
    ctl.output.show(answer, lambda: _table(answer["settings"]))
    if ctl.output.form == "table":
        ctl.output.message(f"Settings file: {answer['config_file'] or 'none'}")
        for name, row in answer["derived"].items():
            ctl.output.message(f"{name} is {row['value']} now: {row['derivation']}.")
        for note in (*answer["warnings"], *answer["notes"]):
            ctl.output.message(note)


def _table(settings: dict[str, dict[str, Any]]) -> Table:
    return tables.listing(
        ("SETTING", "VALUE", "SOURCE"),
        ((name, _text(row["value"]), row["source"]) for name, row in settings.items()),
    )


def _text(value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return str(value)
