"""``mlxctl config``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxctl import tables
from mlxctl.context import Ctl, pass_ctl
from mlxctl.errors import CtlError, ExitCode
from mlxctl.options import CtlGroup

if TYPE_CHECKING:
    from rich.table import Table


@click.group(cls=CtlGroup)
def config() -> None:
    """Look at the daemon's settings, and have them read again."""


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


@config.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="F",
    help="The settings file. Default: the one that the daemon would read.",
)
@pass_ctl
def check(ctl: Ctl, file: Path | None) -> int | None:
    """Read the settings as a daemon that starts here and now would.

    Needs no daemon. Everything that is wrong is named, with file, line and column; exit code 1
    then. Flags of a service are not known here; `mlxceld check-config` takes them.

    \b
    mlxctl config check
    mlxctl config check --config new.yaml && mlxctl config reload
    """
    from mlxceld.config import ConfigFileError, effective, resolve

    try:
        resolved = resolve({}, config_file=file)
    except ConfigFileError as error:
        raise CtlError(
            "invalid_config",
            "\n".join(str(one) for one in error.errors),
            ExitCode.REFUSED,
            details={"problems": [str(one) for one in error.errors]},
            hint="after the correction, try: mlxctl config check",
        ) from None
    rows = {
        row.name: {"value": row.value, "source": str(row.source)} for row in effective(resolved)
    }
    answer = {
        "config_file": str(resolved.config_file) if resolved.config_file else None,
        "settings": rows,
        "notes": list(resolved.notes),
        "warnings": list(resolved.warnings),
    }
    ctl.output.show(answer, lambda: _table(rows))
    if ctl.output.form == "table":
        ctl.output.message(f"Settings file: {answer['config_file'] or 'none'}")
        for line in (*resolved.warnings, *resolved.notes):
            ctl.output.message(line)
    return None


@config.command()
@pass_ctl
def reload(ctl: Ctl) -> int | None:
    """Let the daemon read its settings, API keys and tokens again.

    Shows what it applied, what needs a restart and what it refused; exit code 1 if anything was
    refused. If something is wrong in a file, nothing changes.

    \b
    mlxctl config reload
    """
    try:
        answer = ctl.client.send("POST", "config/reload", {})
    except CtlError as error:
        if error.code == "invalid_config":
            error.hint = "after the correction, try: mlxctl config check; mlxctl config reload"
        raise
    ctl.output.show(answer, lambda: _reload_table(answer))
    if ctl.output.form == "table" and not any(answer.values()):
        ctl.output.message("Nothing has changed.")
    return ExitCode.REFUSED if answer["refused"] else None


def _reload_table(answer: dict[str, dict[str, Any]]) -> Table:
    def rows() -> Iterator[tuple[str, str, str, str]]:
        for title, part in (("applied", "applied"), ("needs a restart", "needs_restart")):
            for name, step in answer[part].items():
                yield name, title, _text(step["before"]), _text(step["after"])
        for name, why in answer["refused"].items():
            yield name, f"refused: {why}", "", ""

    return tables.listing(("SETTING", "RESULT", "BEFORE", "AFTER"), rows())


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
