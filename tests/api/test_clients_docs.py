"""The SDK examples of the clients' page, run as they stand but for the address."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from api_harness import open_api
from mlxceld.config import SETTINGS, Settings
from mlxceld.engine.engine import Engine

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8484"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_address_is_the_default_one() -> None:
    host, port = SETTINGS["host"].default, SETTINGS["port"].default
    assert f"http://{host}:{port}" == ADDRESS
    assert set(re.findall(r"http://[\d.]+:\d+", PAGE)) == {ADDRESS}


def test_settings_files_can_be_read() -> None:
    for text in blocks("json"):
        assert ADDRESS in json.dumps(json.loads(text))
    for text in blocks("toml"):
        assert tomllib.loads(text)["model_providers"]["mlxceld"]["base_url"] == f"{ADDRESS}/v1"
    for text in blocks("yaml"):
        assert yaml.safe_load(text)["models"][0]["apiBase"] == f"{ADDRESS}/v1"


@pytest.mark.parametrize("code", blocks("python"), ids=["openai", "anthropic"])
async def test_the_sdk_examples_run(
    engine: Engine, settings: Callable[..., Settings], code: str
) -> None:
    async with open_api(engine, settings()) as client:
        here = str(client.make_url("/")).rstrip("/")
        # What the example asks for, kept short: a model of random weights may not end by itself.
        code = code.replace(ADDRESS, here).replace('model="any",', 'model="any", max_tokens=5,')
        code = code.replace("max_tokens=5, max_tokens=100", "max_tokens=5")
        names: dict[str, Any] = {}
        await asyncio.to_thread(exec, code, names)
        assert names["client"].base_url.host == "127.0.0.1"
