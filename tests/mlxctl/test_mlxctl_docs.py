"""The manual and the command tree say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from mlxctl.errors import ExitCode
from mlxctl.main import cli
from mlxctl.options import GlobalOption

MANUAL = (Path(__file__).parents[2] / "docs" / "mlxctl.md").read_text()


def leaves(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None, name
            yield from leaves(child, f"{path} {name}")
    else:
        yield path, command


def options(command: click.Command, *, shared: bool) -> set[str]:
    return {
        name
        for param in command.params
        if isinstance(param, click.Option) and isinstance(param, GlobalOption) is shared
        for name in (*param.opts, *param.secondary_opts)
    }


def section(title: str) -> str:
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", MANUAL, re.M | re.S)
    assert found, f"no section {title!r}"
    return found.group(1)


def documented(text: str) -> set[str]:
    """The options in the first cells of a section's table."""
    cells = re.findall(r"^\| (`-.*?) \|", text, re.M)
    return {name for cell in cells for name in re.findall(r"`(--?[a-z][a-z-]*)", cell)}


def test_every_command_has_its_section_and_no_section_is_of_none():
    titles = set(re.findall(r"^### `(mlxctl [a-z ]+)`$", MANUAL, re.M))
    assert titles == {path for path, _ in leaves(cli, "mlxctl")}


def test_every_option_is_in_its_commands_table_and_no_other():
    for path, command in leaves(cli, "mlxctl"):
        assert documented(section(f"`{path}`")) == options(command, shared=False), path


def test_the_global_options_and_their_environment():
    text = section("Global options")
    assert documented(text) == options(cli, shared=True)
    variables = {p.envvar for p in cli.params if isinstance(p, GlobalOption) and p.envvar}
    assert set(re.findall(r"MLXCTL_[A-Z_]+", MANUAL)) == variables
    assert variables == {"MLXCTL_SOCKET", "MLXCTL_URL", "MLXCTL_TOKEN_FILE", "MLXCTL_OUTPUT"}


def test_the_exit_codes():
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), re.M)}
    assert codes == set(ExitCode)
    assert all(str(code.value) in (cli.epilog or "") for code in ExitCode)


def test_every_command_takes_the_global_options():
    for path, command in leaves(cli, "mlxctl"):
        own = options(command, shared=False)
        assert options(cli, shared=True) == options(command, shared=True) | (
            own & options(cli, shared=True)
        ), path
