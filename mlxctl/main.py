"""The mlxctl command: its tree, and how it ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from mlxceld.config.streams import open_missing_streams
from mlxctl.context import Ctl
from mlxctl.errors import CtlError, ExitCode
from mlxctl.options import RootGroup

_EXIT_CODES_HELP = """\b
Exit codes: 0 ok, 1 the daemon refused or failed, 2 usage, 3 daemon unreachable,
4 not authorised, 5 conflict, 6 timed out, 130 Ctrl-C."""

_COMMANDS = {
    **dict.fromkeys(("status", "wait", "drain"), "mlxctl.commands.daemon"),
    **{
        name: f"mlxctl.commands.{name}"
        for name in (
            *("requests", "cache", "trace", "config", "service"),
            *("bench", "doctor", "completion"),
        )
    },
}
"""Every command, and the module that has it."""


@click.group(
    cls=RootGroup,
    elsewhere=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EXIT_CODES_HELP,
)
@click.version_option(package_name="mlxceld", prog_name="mlxctl")
def cli() -> None:
    """Look into a running mlxceld and steer it.

    \b
    mlxctl status
    mlxctl cache stats --watch
    mlxctl cache resize --capacity 8GiB
    mlxctl service install -- --model demo
    mlxctl doctor
    """


def run(arguments: Sequence[str] | None = None, ctl: Ctl | None = None) -> int:
    """Run one command and report how it went; returns the exit code."""
    ctl = ctl or Ctl()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = cli.main(given, prog_name="mlxctl", standalone_mode=False, obj=ctl)
    except CtlError as error:
        ctl.output.error(error)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        if _json_wanted(ctl, given):
            body = {"code": "usage", "message": error.format_message(), "details": {}}
            click.echo(json.dumps({"error": body}), err=True)
        else:
            error.show()
        return error.exit_code
    except click.Abort as error:
        # click raises the same for Ctrl-C and for an end of input where it asked something.
        if isinstance(error.__cause__ or error.__context__, EOFError):
            click.echo("mlxctl: nothing was changed", err=True)
            return ExitCode.REFUSED
        return ExitCode.INTERRUPTED
    except OSError as error:
        # A full disk under the output; a pipe without a reader is click's to end quietly.
        ctl.output.error(CtlError("output", f"cannot write: {error}", ExitCode.REFUSED))
        return ExitCode.REFUSED
    return result if isinstance(result, int) else ExitCode.OK


def main() -> NoReturn:
    """Entry point of the ``mlxctl`` script."""
    open_missing_streams()
    try:
        code = run()
        _let_go_of_output()
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    sys.exit(code)


def _let_go_of_output() -> None:
    """Leave nothing for the interpreter to write at its end, which would complain in its words."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _json_wanted(ctl: Ctl, given: Sequence[str]) -> bool:
    """Whether errors are to be JSON, also when the arguments could not all be read."""
    if (form := ctl.options.get("output")) is not None:
        return bool(form == "json")
    pairs = zip(given, [*given[1:], ""], strict=True)
    if any((a in ("-o", "--output") and b == "json") or a in _JSON_WORDS for a, b in pairs):
        return True
    return os.environ.get("MLXCTL_OUTPUT") == "json"


_JSON_WORDS = ("-ojson", "--output=json")
