"""``mlxctl cache warm``, ``cache unpin`` and ``cache verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from mlxctl import tables
from mlxctl.api_option import api_option
from mlxctl.context import Ctl, pass_ctl
from mlxctl.errors import CtlError, ExitCode
from mlxctl.identifiers import whole_id
from mlxctl.options import CtlCommand

if TYPE_CHECKING:
    from rich.table import Table

_LISTED = 10_000
"""Entries that a listing has at most."""


@click.command(cls=CtlCommand)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option("--session", metavar="K", help="Whose it is, as requests name their session.")
@click.option("--pin", is_flag=True, help="Keep it whatever its age and use, until unpinned.")
@click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Return when it is stored, or at once with the id of its request.",
)
@api_option
@pass_ctl
def warm(ctl: Ctl, file: Path, session: str | None, pin: bool, wait: bool, api: str | None) -> None:
    """Prefill a system prompt or a conversation and keep it.

    FILE is a text (a system prompt, whole) or JSON: a list of messages, or the body of a request
    to any of the APIs, as it was sent. What was stored before is not computed again.

    \b
    mlxctl cache warm system.txt --pin
    mlxctl cache warm conversation.json --session alice
    """
    from mlxceld.config.promptfile import PromptFileError, read_prompt_file

    if session == "":
        raise click.BadParameter("expected a session key", param_hint="--session")
    try:
        order = read_prompt_file(file)
    except PromptFileError as error:
        raise CtlError("prompt_file", str(error), ExitCode.USAGE) from None
    if session is not None:
        order["session"] = session
    if api is not None:
        order["api"] = api
    answer = ctl.client.send("POST", "cache/warm", {**order, "pin": pin, "wait": wait})
    ctl.output.show(answer, lambda: _warm_table(answer))


@click.command(cls=CtlCommand)
@click.argument("digest", metavar="DIGEST")
@pass_ctl
def unpin(ctl: Ctl, digest: str) -> None:
    """Leave a pinned entry to its age and use.

    `mlxctl cache entries` shows the digests; the first characters of one do where no other pinned
    entry begins with them. The entry stays until its time has come.

    \b
    mlxctl cache unpin 4f2a91c07be31d55
    """
    if not digest:
        raise click.UsageError("DIGEST: expected the digest of an entry, found nothing")
    listed = ctl.client.get("cache/entries", store="all", limit=_LISTED)["entries"]
    digest = whole_id(
        digest, [entry["digest"] for entry in listed if entry["pins"]], "pinned entry"
    )
    try:
        answer = ctl.client.send("DELETE", f"cache/pins/{quote(digest, safe='')}")
    except CtlError as error:
        if error.code == "not_found" and not error.hint:
            error.hint = "the pinned entries are shown by: mlxctl cache entries"
        raise
    ctl.output.show(
        answer,
        lambda: tables.key_values(
            [
                ("unpinned", answer["digest"]),
                ("tokens", tables.count_text(answer["tokens"])),
                ("bytes", tables.size_text(answer["bytes"])),
            ]
        ),
    )


@click.command(cls=CtlCommand)
@pass_ctl
def verify(ctl: Ctl) -> int | None:
    """Prove that what is adopted equals what is computed.

    On the loaded model and for each kind of layer cache. Exit code 1: something does not hold.
    """
    answer = ctl.client.send("POST", "cache/verify", {})
    ctl.output.show(answer, lambda: _verify_table(answer))
    if answer["passed"]:
        return None
    ctl.output.message("mlxctl: the cache of this model is not to be trusted; see the checks")
    return ExitCode.REFUSED


def _warm_table(answer: dict[str, Any]) -> Table:
    count = tables.count_text
    rows = [("id", answer["id"]), ("tokens", count(answer["tokens"]))]
    if "digest" in answer:
        rows += [
            ("cached before", count(answer["cached_tokens"])),
            ("took", tables.duration_text(answer["seconds"])),
            ("digest", answer["digest"]),
            ("pinned", "yes" if answer["pinned"] else "no"),
        ]
    return tables.key_values(rows)


def _verify_table(answer: dict[str, Any]) -> Table:
    return tables.listing(
        ("CHECK", "KIND", "RESULT", "DETAIL"),
        (
            (one["name"], one["kind"], "ok" if one["passed"] else "FAILED", one["detail"])
            for one in answer["checks"]
        ),
    )
