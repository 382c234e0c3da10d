"""``mlxctl requests``."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from mlxctl import tables
from mlxctl.context import Ctl, pass_ctl
from mlxctl.identifiers import whole_id
from mlxctl.options import CtlGroup
from mlxctl.rowlisting import RowListing

_HEADERS = (
    "ID",
    "PHASE",
    "PROMPT>",
    "CACHED>",
    "DONE>",
    "GENERATED>",
    "LIMIT>",
    "AGE>",
    "ENDPOINT",
    "CLIENT",
    "SESSION",
    "NOTE",
)

_DROPPED = ("CLIENT", "LIMIT>", "SESSION", "ENDPOINT", "DONE>", "AGE>")
"""What a narrow terminal is spared first."""


@click.group(cls=CtlGroup)
def requests() -> None:
    """List and cancel requests in flight."""


@requests.command("list")
@pass_ctl
def list_requests(ctl: Ctl) -> None:
    """Show what is in flight.

    Each request's phase, tokens, how many of them were cached, age and client.
    """
    answer = ctl.client.get("requests")
    ctl.output.show(answer, lambda: _table(answer["requests"]))


@requests.command()
@click.argument("request_id", metavar="ID")
@pass_ctl
def cancel(ctl: Ctl, request_id: str) -> None:
    """Stop the request ID within one step.

    The first characters of an id do where no other begins with them.
    """
    if not request_id:
        raise click.UsageError("ID: expected the id of a request, found nothing")
    listed = ctl.client.get("requests")["requests"]
    request_id = whole_id(request_id, [item["id"] for item in listed], "request")
    answer = ctl.client.send("DELETE", f"requests/{quote(request_id, safe='')}")
    ctl.output.show(answer, lambda: tables.key_values([("cancelled", answer["id"])]))


def _table(requests: list[dict[str, Any]]) -> RowListing:
    count = tables.count_text
    return RowListing(
        _HEADERS,
        (
            (
                item["id"],
                item["phase"],
                count(item["prompt_tokens"]),
                count(item["cached_tokens"]),
                count(item["prefilled_tokens"]),
                count(item["generated_tokens"]),
                count(item["max_tokens"]),
                tables.duration_text(item["age_seconds"]),
                item["endpoint"] + (" (stream)" if item["stream"] else ""),
                item["client"] or "-",
                item["session"],
                item["note"],
            )
            for item in requests
        ),
        identifiers=("ID", "SESSION"),
        dropped=_DROPPED,
    )
