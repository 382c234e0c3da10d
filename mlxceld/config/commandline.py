"""The options of ``serve`` as another program keeps them: checked, and true from any folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from mlxceld.config.kinds import Kind, PathKind, PathsKind
from mlxceld.config.options import SettingsCommand, resolve_from_click, settings_options
from mlxceld.config.resolve import ResolvedSettings, absolute_model
from mlxceld.config.table import SETTINGS


def check_arguments(
    arguments: Sequence[str], *, environ: Mapping[str, str], folder: Path
) -> tuple[list[str], ResolvedSettings]:
    """``serve``'s arguments with absolute paths, and the settings that they come to.

    ``folder`` is what relative paths are relative to; ``environ`` the environment that the daemon
    will have. Raises click.UsageError for what ``serve`` would not take, ConfigFileError for a
    file that it would not.
    """
    command = _serve()
    try:
        context = command.make_context("mlxceld serve", list(arguments))
    except click.exceptions.Exit as asked:
        raise click.UsageError("--help is no option of a service") from asked
    absolute = _absolute(command, arguments, folder)
    params = {**context.params}
    if params.get("config") is not None:
        params["config"] = folder / params["config"].expanduser()
    return absolute, resolve_from_click(params, environ=environ, folder=folder)


def _serve() -> click.Command:
    @click.command(cls=SettingsCommand)
    @settings_options
    def serve(**params: object) -> None:
        """Take what ``mlxceld serve`` takes."""

    return serve


def _absolute(command: click.Command, arguments: Sequence[str], folder: Path) -> list[str]:
    """The words with each path made absolute; they have been found in order."""
    taking: dict[str, Kind[object] | None] = {}
    for option in command.params:
        if not isinstance(option, click.Option) or option.is_flag or option.name is None:
            continue
        row = SETTINGS.get(option.name.replace("__", "."))
        for spelling in option.opts:
            taking[spelling] = None if row is None else row.kind
    words: list[str] = []
    waiting: str | None = None
    for word in arguments:
        flag, equals, value = word.partition("=")
        if waiting is not None:
            words.append(_value(waiting, taking[waiting], word, folder))
            waiting = None
        elif equals and flag in taking:
            words.append(f"{flag}={_value(flag, taking[flag], value, folder)}")
        elif word.startswith("-") and word[:2] in taking and word[:2] != word:
            # A short option with its value in one word.
            words.append(word[:2] + _value(word[:2], taking[word[:2]], word[2:], folder))
        else:
            words.append(word)
            waiting = word if word in taking else None
    return words


def _value(flag: str, kind: Kind[object] | None, text: str, folder: Path) -> str:
    if flag in SETTINGS["model"].flags[0].split("/"):
        return absolute_model(text, folder)
    if flag == "--config" or isinstance(kind, PathKind | PathsKind):
        return str(folder / Path(text).expanduser()) if text else text
    return text
