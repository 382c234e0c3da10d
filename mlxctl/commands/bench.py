"""``mlxctl bench``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlxctl.bench.names import GROUPS, SCENARIOS
from mlxctl.context import Ctl, pass_ctl
from mlxctl.errors import ExitCode
from mlxctl.options import CtlGroup
from mlxctl.params import DURATION

if TYPE_CHECKING:
    from mlxctl.bench.plan import Plan, ServerSpec

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=CtlGroup)
def bench() -> None:
    """Measure servers that speak OpenAI's API, with the same seeded scenarios.

    \b
    mlxctl bench run --model demo --prefix-tokens 700
    mlxctl bench compare --model ~/models/Qwen3-4B-4bit
    mlxctl bench compare --config on= --config off=--no-prompt-cache
    """


def _size(flag: str, default: int, least: int, text: str) -> Callable[[F], F]:
    return click.option(
        flag,
        type=click.IntRange(least, 10**6),
        default=default,
        show_default=True,
        metavar="N",
        help=text,
    )


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--config",
        "configs",
        multiple=True,
        metavar="NAME=FLAGS",
        help="mlxceld with these flags of `mlxceld serve`. Repeatable.",
    ),
    click.option(
        "--binary",
        "binaries",
        multiple=True,
        metavar="[NAME=]PATH",
        help="Another build's mlxceld. Repeatable.",
    ),
    click.option(
        "--peer",
        "peers",
        multiple=True,
        metavar="PEER",
        help="mlx_lm.server, or NAME=COMMAND with {model} and {port}. Repeatable.",
    ),
    click.option(
        "--url",
        "urls",
        multiple=True,
        metavar="NAME=URL",
        help="A server that runs already; it is not started or stopped. Repeatable.",
    ),
    click.option(
        "--model",
        default="demo",
        show_default=True,
        metavar="MODEL",
        help="An MLX model folder, a .gguf file, a hub id, or demo.",
    ),
    click.option(
        "--scenario",
        "scenarios",
        multiple=True,
        type=click.Choice([*SCENARIOS, *GROUPS]),
        metavar="NAME",
        help=f"Only this of {', '.join([*SCENARIOS, *GROUPS])}. Repeatable. Default: all.",
    ),
    click.option(
        "--repeats",
        type=click.IntRange(1, 1000),
        default=5,
        show_default=True,
        metavar="N",
        help="How often everything is run, each time with texts of its own.",
    ),
    _size("--prefix-tokens", 3700, 1, "Length of the shared prefix; other prompts go by it."),
    _size("--question-tokens", 16, 1, "Length of a question."),
    _size("--tokens", 16, 1, "Most tokens of an answer."),
    _size("--decode-tokens", 96, 2, "Most tokens of a long answer."),
    click.option(
        "--ignore-eos",
        is_flag=True,
        help="Answers as long as they may be: by logit_bias no token may end one.",
    ),
    _size("--sharers", 8, 1, "Requests that share the prefix."),
    _size("--turns", 8, 1, "Turns of a conversation."),
    _size("--prompts", 32, 1, "Distinct prompts of churn."),
    _size("--short-streams", 4, 1, "Streams beside the long prompt of mixed."),
    click.option(
        "--idle",
        type=DURATION,
        default=5.0,
        metavar="D",
        help="How long idle lasts. Default: 5s.",
    ),
    click.option(
        "--settle",
        type=DURATION,
        default=0.5,
        metavar="D",
        help="Pause before memory is looked at. Default: 0.5s.",
    ),
    click.option(
        "--seed", type=int, default=1, show_default=True, metavar="N", help="Decides every text."
    ),
    click.option(
        "--timeout",
        type=DURATION,
        default=600.0,
        metavar="D",
        help="Limit of one request. Default: 10m.",
    ),
    click.option(
        "--start-timeout",
        type=DURATION,
        default=300.0,
        metavar="D",
        help="Limit of a server's start. Default: 5m.",
    ),
    click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Folder of the record, the result and the plots. Default: a new one, here.",
    ),
    click.option("--resume", is_flag=True, help="Go on with the record in --out."),
    click.option(
        "--plot/--no-plot", default=True, show_default=True, help="Draw charts (PNG and SVG)."
    ),
)


def _options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@bench.command()
@_options
@pass_ctl
def run(ctl: Ctl, /, **given: Any) -> int | None:
    """Measure one server: time to first token, latency, rates, cached and computed tokens, memory.

    Each scenario and repeat gets a fresh process. A server that fails is reported with the end of
    its log, the rest goes on, and the exit code is 1 then.

    \b
    mlxctl bench run --model demo --prefix-tokens 700
    mlxctl bench run --config 'small=--prompt-cache-capacity-bytes 64MiB' --scenario churn
    mlxctl bench run --url live=http://127.0.0.1:8484 --scenario decode --no-plot
    """
    servers = _servers(given)
    if len(servers) > 1:
        names = ", ".join(server.name for server in servers)
        raise click.UsageError(f"run measures one server, found {names}; compare takes several")
    return _run(ctl, given, servers)


@bench.command()
@_options
@pass_ctl
def compare(ctl: Ctl, /, **given: Any) -> int | None:
    """Measure two servers or more in turn, and tell the ratios of the first to each other.

    Without any named, mlxceld and mlx_lm.server; with one, mlxceld and that one. The servers take
    turns within a scenario, another one first in each repeat. Answers are compared, too.

    \b
    mlxctl bench compare --model demo --prefix-tokens 700
    mlxctl bench compare --config on= --config off=--no-prompt-cache --scenario seqshare
    mlxctl bench compare --binary old=~/old/bin/mlxceld --out bench-old --resume
    """
    return _run(ctl, given, _compared(_servers(given, fill=False)))


def _run(ctl: Ctl, given: dict[str, Any], servers: Sequence[ServerSpec]) -> int | None:
    from mlxctl.bench.report import report
    from mlxctl.bench.session import Session

    folder = _folder(given)
    session = Session(
        _plan(given, servers),
        folder,
        given["resume"],
        given["plot"],
        given["timeout"],
        given["start_timeout"],
    )
    try:
        summary = session.run()
    except KeyboardInterrupt:
        ctl.output.message(f"\nStopped; the same command with --out {folder} --resume goes on")
        raise
    ctl.output.show(summary, lambda: report(summary))
    ctl.output.message(f"The record and the result are in {folder}")
    return ExitCode.REFUSED if summary["failures"] else None


def _servers(given: dict[str, Any], *, fill: bool = True) -> list[ServerSpec]:
    """The servers that the options name, in the order of the options; raises UsageError."""
    from mlxctl.bench import servers

    found: list[ServerSpec] = []
    for flag, key, read in (
        ("--config", "configs", servers.configured),
        ("--binary", "binaries", servers.built),
        ("--peer", "peers", servers.peer),
        ("--url", "urls", servers.running),
    ):
        for text in given[key]:
            try:
                found.append(read(text))
                servers.unique(found)
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint=flag) from None
    return found or ([servers.own()] if fill else [])


def _compared(found: list[ServerSpec]) -> list[ServerSpec]:
    """At least two."""
    from mlxctl.bench import servers

    if not found:
        return [servers.own(), servers.peer(servers.PEER)]
    both = found if len(found) > 1 else [servers.own(), *found]
    try:
        servers.unique(both)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return both


def _plan(given: dict[str, Any], servers: Sequence[ServerSpec]) -> Plan:
    from mlxceld.config import SETTINGS
    from mlxctl.bench.model import model_folder
    from mlxctl.bench.plan import Plan, Sizes

    context = click.get_current_context()
    named = context.get_parameter_source("model") is not click.core.ParameterSource.DEFAULT
    all_running = all(server.kind == "url" for server in servers)
    wanted = {one for name in given["scenarios"] or SCENARIOS for one in GROUPS.get(name, (name,))}
    return Plan(
        model=None if all_running and not named else model_folder(given["model"]),
        servers=tuple(servers),
        scenarios=tuple(name for name in SCENARIOS if name in wanted),
        sizes=Sizes(
            **{
                name: given[name]
                for name in (
                    *("prefix_tokens", "question_tokens", "tokens", "decode_tokens"),
                    *("sharers", "turns", "prompts", "short_streams"),
                )
            },
            idle_seconds=given["idle"],
        ),
        repeats=given["repeats"],
        seed=given["seed"],
        settle_seconds=given["settle"],
        min_prefix=SETTINGS["prompt_cache.min_prefix"].default,
        ignore_eos=given["ignore_eos"],
    )


def _folder(given: dict[str, Any]) -> Path:
    folder: Path | None = given["out"]
    if folder is None:
        if given["resume"]:
            raise click.UsageError("--resume needs the folder of the record: give --out DIR")
        from datetime import datetime

        folder = Path(f"mlxctl-bench-{datetime.now().astimezone():%Y%m%d-%H%M%S}")
    return folder
