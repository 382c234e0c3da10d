"""``mlxctl trace``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from mlxctl import tables
from mlxctl.context import Ctl, pass_ctl
from mlxctl.options import CtlGroup

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

RING_EVENTS = 256
"""How many events the daemon keeps."""

_POLL_SECONDS = 1.0


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

    The trace may be on or off: the last events are always kept.
    """
    # All are fetched, and those before the last N only remembered, to know what is new next time.
    seen: list[dict[str, Any]] = ctl.client.get("trace", n=RING_EVENTS)["events"]
    _print(ctl, seen[-lines:] if lines else [])
    if not follow:
        return
    for number in ctl.ticks(_POLL_SECONDS):
        if number == 0:
            continue
        events = ctl.client.get("trace", n=RING_EVENTS)["events"]
        known = overlap(seen, events)
        if seen and known == 0 and events:
            ctl.output.message("mlxctl: more happened than is kept; some events are missing")
        _print(ctl, events[known:])
        seen = events


def overlap(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> int:
    """How many of the events at the start of ``now`` end ``before``: the rest is new."""
    for length in range(min(len(before), len(now)), 0, -1):
        if before[-length:] == now[:length]:
            return length
    return 0


def event_line(event: dict[str, Any]) -> str:
    """An event as its log line, after the local time."""
    millis = event["at_unix_ms"]
    clock = time.strftime("%H:%M:%S", time.localtime(millis / 1000))
    words = [f"{clock}.{millis % 1000:03d}", f"apc_event={event['event']}"]
    for name, value in event.items():
        if name not in ("at_unix_ms", "event") and value is not None:
            words.append(f"{name}={value}")
    return " ".join(words)


def _print(ctl: Ctl, events: list[dict[str, Any]]) -> None:
    for event in events:
        ctl.output.stream(event, lambda item=event: _text(item))  # type: ignore[misc]


def _text(event: dict[str, Any]) -> Text:
    from rich.text import Text

    return Text(event_line(event), overflow="fold")


def _switch(ctl: Ctl, *, enabled: bool) -> None:
    answer = ctl.client.send("PUT", "trace", {"enabled": enabled})
    ctl.output.show(answer, lambda: _switch_table(answer))


def _switch_table(answer: dict[str, Any]) -> Table:
    return tables.key_values([("trace", "on" if answer["enabled"] else "off")])
