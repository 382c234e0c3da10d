"""The manual and the application name the same routes, codes and fields."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from api_harness import ScriptedEngine, metrics_text
from mlxceld.api import errors, middleware
from mlxceld.api.app import create_app
from mlxceld.api.keys import ApiKeys
from mlxceld.api.openai.schemas import ChatRequest, CompletionRequest
from mlxceld.config import Settings

ROOT = Path(__file__).parents[2]
MANUAL = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")


def test_the_routes_are_those_of_the_application(
    scripted: ScriptedEngine, settings: Callable[..., Settings]
) -> None:
    app = create_app(scripted, settings(), ApiKeys.none(), metrics_text=metrics_text)
    served = {
        f"{route.method} {route.resource.canonical}"
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    listed = re.findall(r"^\| `((?:GET|POST|DELETE|PUT|PATCH) [^`]+)` \|", MANUAL, re.MULTILINE)
    assert sorted(listed) == sorted(served)
    assert {f"GET {path}" for path in middleware.OPEN_ROUTES} <= served


def test_every_field_is_described() -> None:
    named = set(re.findall(r"`([a-z_]+)(?:\.[a-z_]+)?`", MANUAL))
    fields = {*ChatRequest.model_fields, *CompletionRequest.model_fields}
    assert fields - named == set()


def test_every_error_code_is_described() -> None:
    sources = [*(ROOT / "mlxceld" / "api").rglob("*.py")]
    used = {
        code
        for source in sources
        for code in re.findall(r'code="([a-z_]+)"', source.read_text(encoding="utf-8"))
    }
    table = MANUAL[MANUAL.index("| status | `code`") :]
    listed = set(re.findall(r"`([a-z_]+)`", table))
    assert used
    assert used - listed == set()
    assert str(errors.CLIENT_CANCELLED) in table


def test_the_api_never_loads_mlx() -> None:
    heavy = "{'mlx', 'mlx_lm', 'transformers'}"
    code = f"import sys, mlxceld.api.app; print(sorted({heavy} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
