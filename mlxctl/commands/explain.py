"""``mlxctl cache explain``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from mlxctl import tables
from mlxctl.api_option import api_option
from mlxctl.context import Ctl, pass_ctl
from mlxctl.options import CtlCommand

if TYPE_CHECKING:
    from rich.console import Group

_CONVERSATIONS = frozenset({"messages", "input"})
_PROMPTS = _CONVERSATIONS | {"prompt"}
"""The fields by which a body is told from a text."""


@click.command("explain", cls=CtlCommand)
@click.option(
    "--messages",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="A conversation: a JSON list of messages, or a request's body. - is standard input.",
)
@click.option("--prompt", metavar="TEXT", help="A raw prompt, as for /v1/completions.")
@click.option(
    "--file",
    "text_file",
    type=click.File("r", encoding="utf-8"),
    metavar="F",
    help="A file with the body of a request, or with a raw prompt. - is standard input.",
)
@click.option("--session", metavar="K", help="The request's session key; default: the body's.")
@api_option
@pass_ctl
def explain(
    ctl: Ctl,
    messages: IO[str] | None,
    prompt: str | None,
    text_file: IO[str] | None,
    session: str | None,
    api: str | None,
) -> None:
    """Tell what a request would reuse, and why not more.

    Nothing is computed, counted or stored. The body is read as it would be if it were sent.

    \b
    mlxctl cache explain --file request.json
    mlxctl cache explain --file claude-code.json --api messages
    """
    if sum(given is not None for given in (messages, prompt, text_file)) != 1:
        raise click.UsageError("give one of --messages FILE, --prompt TEXT and --file F")
    if messages is not None:
        body = _conversation(_read(messages, "--messages"))
    elif text_file is not None:
        body = _request(_read(text_file, "--file"))
    else:
        body = {"prompt": prompt}
    if session:
        body["session"] = session
    if api is not None:
        body["api"] = api
    answer = ctl.client.send("POST", "cache/explain", body)
    ctl.output.show(answer, lambda: _report(answer))


def _read(file: IO[str], option: str) -> str:
    try:
        return file.read()
    except UnicodeDecodeError:
        raise click.BadParameter(f"{file.name} is not UTF-8 text", param_hint=option) from None


def _conversation(text: str) -> dict[str, Any]:
    expected = "expected a JSON list of messages, or a request with messages or input"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}; {expected}", param_hint="--messages") from None
    if isinstance(value, list):
        return {"messages": value}
    if isinstance(value, dict) and not _CONVERSATIONS.isdisjoint(value):
        return value
    raise click.BadParameter(expected, param_hint="--messages")


def _request(text: str) -> dict[str, Any]:
    """A request's body if the text is one, else the text itself as a raw prompt."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, dict) and not _PROMPTS.isdisjoint(value):
        return value
    return {"prompt": text}


def _report(answer: dict[str, Any]) -> Group:
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [tables.key_values(_rows(answer))]
    parts += [Text(f"- {item['text']}", overflow="fold") for item in answer["advice"]]
    return Group(*parts)


def _rows(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    count = tables.count_text
    reused, total = answer["reused_tokens"], answer["prompt_tokens"]
    yield "outcome", answer["outcome"]
    share = tables.share_text(reused, total)
    yield "reused", f"{count(reused)} of {count(total)} prompt tokens ({share})"
    if answer["reason"] is not None:
        yield "declined", answer["reason"]
    if answer["donation_reason"] is not None:
        yield "not stored", answer["donation_reason"]
    entry = answer["entry"]
    if entry is not None:
        whose = "the same session" if entry["same_session"] else f"session {entry['session']}"
        yield (
            "nearest entry",
            f"{count(entry['matched_tokens'])} of its {count(entry['tokens'])} tokens match;"
            f" {whose}, {entry['hits']} hits, idle {tables.duration_text(entry['idle_seconds'])}",
        )
    other = answer.get("other_session")
    if other is not None:
        yield (
            "another session",
            f"{count(other['tokens'])} tokens match, of session {other['session']};"
            f" this request's is {answer['session']}",
        )
    gone = answer.get("departure")
    if gone is not None:
        yield (
            "gone",
            f"{count(gone['matched_tokens'])} tokens, {gone['reason']},"
            f" {tables.duration_text(gone['seconds_ago'])} ago",
        )
    divergence = answer["divergence"]
    if divergence is not None:
        yield "differs at", f"token {count(divergence['token'])}"
        yield (
            "there",
            f"{divergence['before']!r} >>> {divergence['text']!r} <<< {divergence['after']!r}",
        )
    rendering = answer["other_rendering"]
    if rendering is not None:
        tool = f": {rendering['tool']}" if rendering.get("tool") else ""
        yield (
            "other rendering",
            f"{count(rendering['matched_tokens'])} tokens match ({rendering['differs']}{tool})",
        )
