"""``mlxctl completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mlxctl.context import Ctl, pass_ctl
from mlxctl.options import CtlCommand

SHELLS = ("bash", "zsh", "fish")

_PLACES = {
    "bash": "~/.local/share/bash-completion/completions/mlxctl",
    "zsh": "a folder of your $fpath, as _mlxctl",
    "fish": "~/.config/fish/completions/mlxctl.fish",
}


@click.command(cls=CtlCommand)
@click.argument("shell", type=click.Choice(SHELLS))
@pass_ctl
def completion(ctl: Ctl, shell: str) -> None:
    """Print what completes mlxctl's commands and options in a shell.

    \b
    mlxctl completion bash > ~/.local/share/bash-completion/completions/mlxctl
    mlxctl completion fish > ~/.config/fish/completions/mlxctl.fish
    """
    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    source = kind(root, {}, "mlxctl", "_MLXCTL_COMPLETE").source()
    ctl.output.show({"shell": shell, "script": source}, lambda: source)
    if ctl.output.form == "table":
        ctl.output.message(f"Save this as {_PLACES[shell]}.")
