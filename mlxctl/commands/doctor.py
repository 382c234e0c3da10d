"""``mlxctl doctor``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mlxctl import tables
from mlxctl.context import Ctl, pass_ctl
from mlxctl.errors import ExitCode
from mlxctl.options import CtlCommand

if TYPE_CHECKING:
    from rich.table import Table

    from mlxctl.checks.scene import Finding


@click.command(cls=CtlCommand)
@pass_ctl
def doctor(ctl: Ctl) -> int | None:
    """Tell what is wrong or slow on this machine, each with its fix.

    Looks at the settings, the daemon and how it is reached, the device and its matrix library,
    memory, budgets, limits, leftovers and the model's files. Works without a daemon too. Exit code
    1: something is wrong; what is only slow or odd does not count.

    \b
    mlxctl doctor
    mlxctl doctor -o json
    """
    from mlxctl.diagnosis import examine

    findings = examine(ctl)
    wrong = any(one.level == "wrong" for one in findings)
    answer = {"healthy": not wrong, "findings": [asdict(one) for one in findings]}
    ctl.output.show(answer, lambda: _table(findings))
    return ExitCode.REFUSED if wrong else None


def _table(findings: list[Finding]) -> Table:
    return tables.listing(
        ("CHECK", "RESULT", "FINDING", "FIX"),
        ((one.check, one.level, one.text, one.fix) for one in findings),
    )
