"""What ``mlxctl doctor`` does: every check, one after the other."""

from __future__ import annotations

from typing import Any

from mlxctl.checks import daemon, memory, model, system
from mlxctl.checks.scene import Check, Finding, Scene
from mlxctl.context import Ctl
from mlxctl.errors import CtlError

CHECKS: tuple[Check, ...] = (
    daemon.check_daemon,
    daemon.check_failure,
    daemon.check_leftovers,
    daemon.check_public_api,
    model.check_device,
    memory.check_memory,
    memory.check_budget,
    model.check_model,
    system.check_service,
    system.check_open_files,
    system.check_clock,
)


def examine(ctl: Ctl) -> list[Finding]:
    """Look at everything; a check that fails itself is a finding too."""
    from mlxceld.config import ConfigFileError, resolve

    findings: list[Finding] = []
    try:
        resolved = resolve({})
        findings.append(_settings(resolved))
    except ConfigFileError as error:
        resolved = resolve({}, search=False)
        findings.append(
            Finding(
                "settings",
                "wrong",
                "; ".join(str(one) for one in error.errors),
                "correct the file, then: mlxctl config check",
            )
        )
    status = stats = unreachable = None
    try:
        status, stats = ctl.client.get("status"), ctl.client.get("cache/stats")
    except CtlError as error:
        unreachable = error
    scene = Scene(ctl, resolved.settings, resolved.settings.state_dir, status, stats, unreachable)
    for check in CHECKS:
        try:
            findings += check(scene)
        except Exception as error:
            name = check.__name__.removeprefix("check_").replace("_", " ")
            findings.append(Finding(name, "unknown", f"could not be looked at: {error}"))
    return findings


def _settings(resolved: Any) -> Finding:
    if resolved.warnings:
        return Finding(
            "settings", "note", "; ".join(resolved.warnings), "mlxctl config check shows them all"
        )
    return Finding("settings", "ok", str(resolved.config_file or "no file; defaults"))
