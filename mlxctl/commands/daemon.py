"""``mlxctl status``, ``wait`` and ``drain``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from mlxctl import tables
from mlxctl.context import Ctl, pass_ctl
from mlxctl.errors import CtlError, ExitCode
from mlxctl.options import CtlCommand
from mlxctl.params import DURATION

if TYPE_CHECKING:
    from rich.table import Table

_POLL_SECONDS = 0.5


@click.command(cls=CtlCommand)
@pass_ctl
def status(ctl: Ctl) -> None:
    """Show the daemon at a glance.

    Version, uptime, model, device, queue, memory and a summary of the cache.

    \b
    mlxctl status
    mlxctl status -o json | jq .running
    """
    answer = ctl.client.get("status")
    ctl.output.show(answer, lambda: _status_table(answer))


@click.command(cls=CtlCommand)
@click.option(
    "--for",
    "goal",
    type=click.Choice(["ready", "idle"]),
    required=True,
    help="ready: the model is loaded and requests are taken. idle: nothing is in flight.",
)
@click.option(
    "--timeout",
    type=DURATION,
    default="5m",
    show_default=True,
    metavar="S",
    help="How long to wait before giving up with exit code 6.",
)
@pass_ctl
def wait(ctl: Ctl, goal: str, timeout: float) -> None:
    """Block until the daemon is ready or idle.

    A daemon that is not there yet is waited for; one whose model failed to load is not.

    \b
    mlxctl wait --for ready --timeout 10m
    mlxctl drain && mlxctl wait --for idle
    """
    deadline = ctl.clock() + timeout
    last = "nothing was heard of the daemon"
    for _ in ctl.ticks(_POLL_SECONDS):
        try:
            answer = ctl.client.get("status")
        except CtlError as error:
            if error.exit_code not in (ExitCode.UNREACHABLE, ExitCode.TIMED_OUT):
                raise
            last = error.message
        else:
            if answer[goal]:
                ctl.output.show(answer, lambda seen=answer: _one_line(seen))  # type: ignore[misc]
                return
            if answer["state"] == "failed":
                raise CtlError("failed", f"the daemon failed: {answer['detail']}", ExitCode.REFUSED)
            if goal == "ready" and answer["state"] == "draining":
                raise CtlError(
                    "draining",
                    "the daemon is draining, and takes requests only after a restart",
                    ExitCode.REFUSED,
                    hint="restart it with: mlxctl service restart",
                )
            last = f"the daemon is {_state(answer)}"
        if ctl.clock() >= deadline:
            raise CtlError(
                "timed_out",
                f"the daemon was not {goal} within {tables.duration_text(timeout)}: {last}",
                ExitCode.TIMED_OUT,
            )


@click.command(cls=CtlCommand)
@pass_ctl
def drain(ctl: Ctl) -> None:
    """Stop taking requests; those accepted run to their end.

    The daemon goes on to run; only a restart makes it take requests again.

    \b
    mlxctl drain && mlxctl wait --for idle
    """
    answer = ctl.client.send("POST", "drain")

    def table() -> Table:
        return tables.key_values(
            [
                ("draining", "yes"),
                ("running", tables.count_text(answer["running"])),
                ("waiting", tables.count_text(answer["waiting"])),
            ]
        )

    ctl.output.show(answer, table)


def _state(answer: dict[str, Any]) -> str:
    text = str(answer["state"])
    return f"{text} ({answer['detail']})" if answer["detail"] else text


def _one_line(answer: dict[str, Any]) -> Table:
    return tables.key_values([("state", _state(answer))])


def _moment(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _status_table(answer: dict[str, Any]) -> Table:
    return tables.key_values(_status_rows(answer))


def _status_rows(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The rows of ``status``, with those that say something only when there is something."""
    count, size, duration = tables.count_text, tables.size_text, tables.duration_text
    yield "state", _state(answer)
    if (preparing := answer.get("preparing")) and preparing["detail"]:
        yield "preparing", preparing["detail"]
    if answer["fault"]:
        yield "fault", f"{answer['fault']} ({count(answer['faults'])} since the start)"
    yield "version", f"{answer['version']}, process {answer['pid']}"
    yield "uptime", duration(answer["uptime_seconds"])
    yield "address", f"{answer['host']}:{answer['port']}"
    if (model := answer["model"]) is not None:
        kinds = ", ".join(f"{number} {kind}" for kind, number in model["layer_caches"].items())
        yield "model", f"{model['id']} ({model['family']}, {model['dtype']})"
        yield "weights", f"{size(model['weight_bytes'])}, {count(model['parameters'])} parameters"
        yield "context", f"{count(model['context_length'])} tokens"
        yield "layer caches", kinds or "none"
        reason = f" ({model['batching_reason']})" if model["batching_reason"] else ""
        yield "batching", model["batching"] + reason
        steps = model.get("template_steps") or {}
        for number, (name, about) in enumerate(steps.items()):
            yield "" if number else "chat template", f"{name}: {about}"
        if model.get("reuse"):
            reason = f" ({model['reuse_reason']})" if model["reuse_reason"] else ", verified"
            yield "prompt reuse", model["reuse"] + reason
        if model.get("sharing"):
            reason = f" ({model['sharing_reason']})" if model["sharing_reason"] else ""
            yield "shared prefixes", model["sharing"] + reason
        if checked_at := model.get("checked_at"):
            # Often by an earlier start: verdicts are kept.
            yield "checked", _moment(checked_at)
        yield "device", model["device"]
    yield "running", f"{count(answer['running'])} of {count(answer['max_batch_size'])}"
    yield "waiting", f"{count(answer['waiting'])} of {count(answer['max_queue'])}"
    if (age := answer["heartbeat_age_seconds"]) is not None and answer["busy"]:
        yield "last step", f"{duration(age)} ago"
    yield (
        "generated",
        f"{count(answer['tokens_generated'])} tokens in {count(answer['steps'])} steps",
    )
    memory = answer["memory"]
    limit = f" of {size(memory['limit'])}" if memory["limit"] else ""
    yield "memory", f"{size(memory['active'])}{limit}, peak {size(memory['peak'])}"
    cache = answer["cache"]
    if cache["enabled"]:
        used = tables.bar(cache["bytes"], cache["capacity_bytes"])
        yield (
            "cache",
            f"{used} of {size(cache['capacity_bytes'])}, {count(cache['entries'])} entries",
        )
        share = tables.share_text(cache["prompt_tokens_reused"], cache["prompt_tokens"])
        if cache["snapshot_enabled"]:
            used = tables.bar(cache["snapshot_bytes"], cache["snapshot_capacity_bytes"])
            room, kept = cache["snapshot_capacity_bytes"], cache["snapshot_entries"]
            yield "snapshots", f"{used} of {size(room)}, {count(kept)} entries"
        yield "cache hits", f"{count(cache['hits'])} of {count(cache['lookups'])} lookups"
        yield "reused", f"{share} of {count(cache['prompt_tokens'])} prompt tokens"
    else:
        yield "cache", "disabled"
    yield "trace", "on" if answer["trace_enabled"] else "off"
