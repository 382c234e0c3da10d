"""The servers to measure: how each is started, and how it is told that it is ready."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from mlxctl.bench.plan import ServerSpec

OURS = "mlxceld"
PEER = "mlx_lm.server"

RESERVED_FLAGS = ("--model", "-m", "--host", "--port", "--state-dir", "--admin-socket")
"""Flags of ``mlxceld serve`` that the benchmark sets itself."""

_READY_ROUTES = {"mlxceld": "/readyz"}


def configured(text: str) -> ServerSpec:
    """``NAME=FLAGS``, of which there may be none: mlxceld with them; raises ValueError."""
    name, equals, flags = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"expected NAME=FLAGS, such as off=--no-prompt-cache, found {text!r}")
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise ValueError(f"{flags!r} cannot be split as a shell does: {error}") from None
    for word in words:
        if word.split("=")[0] in RESERVED_FLAGS:
            raise ValueError(f"{word.split('=')[0]} is set by the benchmark itself")
    return ServerSpec(name.strip(), "mlxceld", _own_program(), tuple(words))


def built(text: str) -> ServerSpec:
    """``PATH`` or ``NAME=PATH``: another build's ``mlxceld``; raises ValueError."""
    name, _, path = text.rpartition("=")
    found = shutil.which(Path(path).expanduser()) if path else None
    if found is None:
        raise ValueError(f"expected a program that can be run, found {path!r}")
    return ServerSpec(name or _name_of(Path(found)), "mlxceld", (str(Path(found).absolute()),))


def peer(text: str) -> ServerSpec:
    """``mlx_lm.server``, or ``NAME=COMMAND`` with ``{model}`` and ``{port}``; raises ValueError."""
    if text == PEER:
        # The launcher puts the same matrix library in front of MLX that mlxceld uses.
        launcher = (sys.executable, "-m", "mlxceld.models.blas", "mlx_lm")
        return ServerSpec(PEER, PEER, (*launcher, "server"))
    name, command = _named(text, f"{PEER}, or NAME=COMMAND with {{model}} and {{port}}")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise ValueError(f"{command!r} cannot be split as a shell does: {error}") from None
    for needed in ("{model}", "{port}"):
        if not any(needed in word for word in words):
            raise ValueError(f"the command of {name} has no {needed} in it: {command!r}")
    if shutil.which(words[0]) is None:
        raise ValueError(f"the command of {name} is not a program that can be run: {words[0]!r}")
    return ServerSpec(name, "command", words)


def running(text: str) -> ServerSpec:
    """``NAME=URL``: a server that runs already; raises ValueError."""
    name, url = _named(text, "NAME=URL, such as live=http://127.0.0.1:8484")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"expected a URL that begins with http:// or https://, found {url!r}")
    return ServerSpec(name, "url", url=url.rstrip("/").removesuffix("/v1"))


def own() -> ServerSpec:
    """mlxceld as it is installed here, with its default settings."""
    return ServerSpec(OURS, "mlxceld", _own_program())


def command(spec: ServerSpec, *, model: str, port: int, folder: Path) -> list[str]:
    """What to run; ``folder`` is a new one of the server's own."""
    if spec.kind == "command":
        return [
            word.replace("{model}", model).replace("{port}", str(port)) for word in spec.program
        ]
    if spec.kind == PEER:
        return [*spec.program, "--model", model, "--port", str(port), *spec.flags]
    arguments = ["serve", "--model", model, "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--state-dir", str(folder / "state")]
    if not any(flag.split("=")[0] == "--config" for flag in spec.flags):
        # An empty file: the settings of the user who measures are not part of it.
        settings = folder / "settings.yaml"
        settings.touch()
        arguments += ["--config", str(settings)]
    return [*spec.program, *arguments, *spec.flags]


def ready_route(spec: ServerSpec) -> str:
    """What answers with 200 as soon as requests are taken."""
    return _READY_ROUTES.get(spec.kind, "/v1/models")


def unique(specs: Sequence[ServerSpec]) -> None:
    """Raises ValueError if two have one name."""
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two servers are called {name!r}; give each a name of its own")


def _own_program() -> tuple[str, ...]:
    return (sys.executable, "-m", "mlxceld")


def _named(text: str, expected: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not equals or not name.strip() or not rest.strip():
        raise ValueError(f"expected {expected}, found {text!r}")
    return name.strip(), rest.strip()


def _name_of(program: Path) -> str:
    """What tells builds apart: the folder that holds the environment, else the path."""
    parents = program.absolute().parents
    return parents[1].name if parents[0].name == "bin" and len(parents) > 1 else str(program)
