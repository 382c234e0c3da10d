"""``mlxctl cache``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlxctl import tables
from mlxctl.commands.explain import explain
from mlxctl.commands.warming import unpin, verify, warm
from mlxctl.context import Ctl, pass_ctl
from mlxctl.entriestable import entries_table
from mlxctl.errors import CtlError
from mlxctl.history import HitRates
from mlxctl.identifiers import whole_id
from mlxctl.options import CtlGroup
from mlxctl.params import COUNT, DURATION, SIZE
from mlxctl.statstable import stats_table

if TYPE_CHECKING:
    from rich.table import Table

_STORES = click.Choice(["all", "kv", "snapshots"])


@click.group(cls=CtlGroup)
def cache() -> None:
    """Look into the prompt cache and change its budget.

    \b
    mlxctl cache stats --watch
    mlxctl cache entries --limit 20
    mlxctl cache resize --capacity 8GiB --dry-run
    """


for _command in (warm, unpin, verify, explain):
    cache.add_command(_command)


@cache.command()
@click.option(
    "--watch",
    type=DURATION,
    is_flag=False,
    flag_value="2",
    metavar="[S]",
    help="Print again every S seconds (2) until Ctrl-C; with -o json one object a line.",
)
@pass_ctl
def stats(ctl: Ctl, watch: float | None) -> None:
    """Show what is cached and how often it helped.

    Sizes, budgets, hit rates, evictions, and why anything was refused. On a terminal --watch also
    draws the hit rate of each interval.

    \b
    mlxctl cache stats
    mlxctl cache stats --watch 5
    mlxctl cache stats -o json | jq .hit_rate
    """
    if watch is None:
        answer = ctl.client.get("cache/stats")
        ctl.output.show(answer, lambda: stats_table(answer))
        return
    if watch <= 0:
        raise click.BadParameter("expected more than 0 seconds", param_hint="--watch")
    rates = HitRates()
    for number in ctl.ticks(watch):
        answer = ctl.client.get("cache/stats")
        rates.add(answer)
        if ctl.output.form != "table":
            ctl.output.stream(answer, lambda: "")
            continue
        console = ctl.output.console()
        if console.is_terminal:
            console.clear()
        elif number:
            console.print()
        # Only a terminal has a place that is written over and over.
        line = rates.line(encoding=console.encoding) if console.is_terminal else ""
        ctl.output.stream(answer, lambda seen=answer, at=line: stats_table(seen, at))  # type: ignore[misc]


@cache.command()
@click.option("--store", type=_STORES, default="all", show_default=True, help="Which store.")
@click.option(
    "--session",
    metavar="K",
    help="Only this session's: its key, or its short hash or the beginning of it.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="At most so many, the most recently used first.",
)
@pass_ctl
def entries(ctl: Ctl, store: str, session: str | None, limit: int) -> None:
    """List what is cached, one row an entry.

    Never the text: an entry has a digest, its session's hash, and numbers.

    \b
    mlxctl cache entries
    mlxctl cache entries --session alice --limit 20
    """
    if session == "":
        raise click.BadParameter("expected a session key or its hash", param_hint="--session")
    query: dict[str, int | str] = {"store": store, "limit": limit}
    if session is not None:
        query["session"] = session
    answer = ctl.client.get("cache/entries", **query)
    if session is not None and not answer["total"]:
        # It may be the beginning of a hash, as a narrow listing shows it.
        every = ctl.client.get("cache/entries", store=store, limit=10_000)["entries"]
        query["session"] = whole_id(session, [entry["session"] for entry in every], "session")
        if query["session"] != session:
            answer = ctl.client.get("cache/entries", **query)
    ctl.output.show(answer, lambda: entries_table(answer["entries"]))
    hidden = answer["total"] - len(answer["entries"])
    if hidden and ctl.output.form == "table":
        ctl.output.message(f"{tables.count_text(hidden)} more; --limit shows more of them.")


@cache.command()
@click.option("--capacity", type=SIZE, metavar="SIZE", help="Bytes of the KV store, like 8GiB.")
@click.option("--max-entries", type=COUNT, metavar="N", help="Entries of the KV store.")
@click.option("--ttl", type=DURATION, metavar="D", help="Idle time of a KV entry; 0 is never.")
@click.option("--snapshot-capacity", type=SIZE, metavar="SIZE", help="Bytes of the snapshot store.")
@click.option("--snapshot-max-entries", type=COUNT, metavar="N", help="Entries of that store.")
@click.option("--snapshot-ttl", type=DURATION, metavar="D", help="Idle time of a snapshot.")
@click.option(
    "--generation",
    type=click.IntRange(0),
    metavar="N",
    help="Only if the budget was changed N times so far; else exit code 5.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be evicted.")
@pass_ctl
def resize(
    ctl: Ctl,
    capacity: int | None,
    max_entries: int | None,
    ttl: float | None,
    snapshot_capacity: int | None,
    snapshot_max_entries: int | None,
    snapshot_ttl: float | None,
    generation: int | None,
    dry_run: bool,
) -> None:
    """Change the live budget, evicting down to it.

    It lasts until the daemon restarts. A size or a number of 0 disables that store and empties it.
    What running requests use stays until they end, and is told as deferred.

    \b
    mlxctl cache resize --capacity 8GiB --dry-run
    mlxctl cache resize --snapshot-capacity 64MiB --snapshot-ttl 30m
    mlxctl cache resize --max-entries 500 --generation 3
    """
    changes = {
        "capacity_bytes": capacity,
        "max_entries": max_entries,
        "ttl_seconds": ttl,
        "snapshot_capacity_bytes": snapshot_capacity,
        "snapshot_max_entries": snapshot_max_entries,
        "snapshot_ttl_seconds": snapshot_ttl,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        raise click.UsageError("nothing to change: give a limit, such as --capacity 8GiB")
    if generation is not None:
        given["generation"] = generation
    try:
        answer = ctl.client.send("PATCH", "cache/budget", {**given, "dry_run": dry_run})
    except CtlError as error:
        if "generation" in error.details:
            error.hint = f"look again, then give: --generation {error.details['generation']}"
        raise
    ctl.output.show(answer, lambda: _resize_table(answer))
    if dry_run:
        ctl.output.message("Nothing was changed: this was a dry run.")
    else:
        ctl.output.message(
            "This lasts until the daemon restarts; to keep it, change the settings file."
        )


@cache.command()
@click.option("--store", type=_STORES, default="all", show_default=True, help="Which store.")
@click.option("--session", metavar="K", help="Only this session's: its key or its short hash.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be dropped.")
@pass_ctl
def flush(ctl: Ctl, store: str, session: str | None, yes: bool, dry_run: bool) -> None:
    """Drop cached entries.

    What running requests still use is freed when they end. Pinned entries go too.

    \b
    mlxctl cache flush --dry-run
    mlxctl cache flush --session alice --yes
    """
    if session == "":
        raise click.BadParameter("expected a session key or its hash", param_hint="--session")
    order: dict[str, Any] = {"store": store}
    if session is not None:
        order["session"] = session
    if not dry_run:
        scope = "everything cached" if store == "all" else f"the {store} store"
        whose = "" if session is None else f" of session {session}"
        ctl.confirm(f"Drop {scope}{whose}?", yes=yes)
    answer = ctl.client.send("POST", "cache/flush", {**order, "dry_run": dry_run})
    ctl.output.show(answer, lambda: _flush_table(answer))
    if dry_run:
        ctl.output.message("Nothing was dropped: this was a dry run.")


def _flush_table(answer: dict[str, Any]) -> Table:
    return tables.key_values(
        [
            ("store", answer["store"]),
            ("entries", tables.count_text(answer["entries"])),
            ("freed", tables.size_text(answer["bytes"])),
            ("deferred", tables.size_text(answer["deferred_bytes"])),
        ]
    )


def _resize_table(answer: dict[str, Any]) -> Table:
    def show(name: str, value: float) -> str:
        if name.endswith("_bytes"):
            return tables.size_text(int(value)) if value else "0 (disabled)"
        if name.endswith("_seconds"):
            return tables.ttl_text(value)
        return tables.count_text(int(value)) if value else "0 (disabled)"

    before, after = answer["before"], answer["after"]
    rows = [(name, show(name, before[name]), show(name, after[name])) for name in before]
    evicted = tables.count_text(answer["evicted_entries"])
    rows += [
        ("evicted entries", "", evicted),
        ("evicted bytes", "", tables.size_text(answer["evicted_bytes"])),
        ("deferred bytes", "", tables.size_text(answer["deferred_bytes"])),
        ("generation", "", tables.count_text(answer["generation"])),
    ]
    return tables.listing(("LIMIT", "BEFORE", "AFTER"), rows)
