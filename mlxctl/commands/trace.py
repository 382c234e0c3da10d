"""``mlxctl trace``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from mlxctl import tables
from mlxctl.context import Ctl, pass_ctl
from mlxctl.errors import CtlError, ExitCode
from mlxctl.options import CtlGroup

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

RING_EVENTS = 256
"""How many events the daemon keeps."""

_ON = "mlxctl: the trace is on; events follow until Ctrl-C"
_OFF = "mlxctl: the trace is off; new events follow once it is on: mlxctl trace on"


@click.group(cls=CtlGroup)
def trace() -> None:
    """Follow what the cache does, event by event."""


@trace.command("on")
@pass_ctl
def switch_on(ctl: Ctl) -> None:
    """Write one log line for each cache event."""
    _switch(ctl, enabled=True)


@trace.command("off")
@pass_ctl
def switch_off(ctl: Ctl) -> None:
    """Write no log lines for cache events."""
    _switch(ctl, enabled=False)


@trace.command("status")
@pass_ctl
def show_status(ctl: Ctl) -> None:
    """Tell whether cache events are logged."""
    answer = {"enabled": ctl.client.get("trace", n=0)["enabled"]}
    ctl.output.show(answer, lambda: _switch_table(answer))


@trace.command()
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, RING_EVENTS),
    default=20,
    show_default=True,
    metavar="N",
    help=f"How many of the last events to show first; {RING_EVENTS} are kept.",
)
@click.option(
    "--follow/--no-follow",
    default=True,
    show_default=True,
    help="Go on with new events until Ctrl-C.",
)
@pass_ctl
def tail(ctl: Ctl, lines: int, follow: bool) -> None:
    """Show the last cache events and follow new ones.

    The last events are kept whether the trace is on or off; new ones come while it is on.
    """
    if not follow:
        for event in ctl.client.get("trace", n=lines)["events"]:
            _print(ctl, event)
        return
    told: bool | None = None
    for name, data in ctl.client.events("trace/stream", n=lines):
        if name == "trace":
            if data["enabled"] != told:
                told = data["enabled"]
                ctl.output.message(_ON if told else _OFF)
        elif name == "dropped":
            ctl.output.message(f"mlxctl: {data['count']} events came too fast and are missing")
        else:
            _print(ctl, data)
    raise CtlError("stream_ended", "the daemon has ended the stream", ExitCode.UNREACHABLE)


def event_line(event: dict[str, Any]) -> str:
    """An event as its log line, after the local time."""
    millis = event["at_unix_ms"]
    clock = time.strftime("%H:%M:%S", time.localtime(millis / 1000))
    words = [f"{clock}.{millis % 1000:03d}", f"apc_event={event['event']}"]
    for name, value in event.items():
        if name not in ("at_unix_ms", "event") and value is not None:
            words.append(f"{name}={value}")
    return " ".join(words)


def _print(ctl: Ctl, event: dict[str, Any]) -> None:
    ctl.output.stream(event, lambda: _text(event))


def _text(event: dict[str, Any]) -> Text:
    from rich.text import Text

    return Text(event_line(event), overflow="fold")


def _switch(ctl: Ctl, *, enabled: bool) -> None:
    answer = ctl.client.send("PUT", "trace", {"enabled": enabled})
    ctl.output.show(answer, lambda: _switch_table(answer))


def _switch_table(answer: dict[str, Any]) -> Table:
    return tables.key_values([("trace", "on" if answer["enabled"] else "off")])
