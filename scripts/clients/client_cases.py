"""What the cases of clients share; a script that has some ends with ``main()``.

Such a script runs in the clients' own environment, with the daemon's URL as its argument.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

URL = sys.argv[-1]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}

CASES: list[tuple[str, str, Callable[[], Any]]] = []


class Skipped(Exception):  # noqa: N818 - no error
    """The installed versions do not fit together."""


def case(client: str, name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Make a function a case of a client, which is the name of its distribution."""

    def add(run: Callable[[], Any]) -> Callable[[], Any]:
        CASES.append((client, name, run))
        return run

    return add


def openai() -> Any:
    return importlib.import_module("openai").OpenAI(base_url=f"{URL}/v1", api_key="none")


def anthropic() -> Any:
    return importlib.import_module("anthropic").Anthropic(base_url=URL, api_key="none")


def weather_tool(seen: list[str]) -> Callable[[str], str]:
    """A tool that notes for which city it was called."""

    def get_weather(city: str) -> str:
        """The weather of a city."""
        seen.append(city)
        return "Rain."

    return get_weather


def main() -> None:
    """Run every case whose client is installed, and print a JSON line a case."""
    for client, name, run in CASES:
        try:
            version = importlib.metadata.version(client)
        except importlib.metadata.PackageNotFoundError:
            told = {"client": client, "version": "-", "case": name, "outcome": "skipped"}
        else:
            told = {"client": client, "version": version, "case": name, "outcome": "ok"}
            try:
                run()
            except Skipped:
                told["outcome"] = "skipped"
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                text = f"{type(error).__name__} at {where.name}:{where.lineno}: {error}"
                told["outcome"] = " ".join(text.split())[:400]
        print(json.dumps(told), flush=True)
