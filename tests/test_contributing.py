"""What CONTRIBUTING.md names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
WORDS = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))
PATHS = sorted({word for word in WORDS if "/" in word and not set("* ") & set(word)})
COMMANDED = sorted(set(re.findall(r"tests/[\w/.]+", PAGE)))
PACKAGES = sorted(p.name for p in (ROOT / "mlxceld").iterdir() if (p / "__init__.py").is_file())


@pytest.mark.parametrize("path", [*PATHS, *COMMANDED])
def test_a_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("package", PACKAGES)
def test_each_room_has_a_row(package: str) -> None:
    assert f"| `mlxceld/{package}/` |" in PAGE


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make (\w+)", PAGE))))
def test_a_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
