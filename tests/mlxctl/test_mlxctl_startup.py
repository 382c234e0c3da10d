"""mlxctl starts light: what its help loads, and what it prints."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "requests",
    "urllib3",
    "rich",
    "yaml",
    "aiohttp",
    "asyncio",
    "pydantic",
    "mlx",
    "transformers",
    "huggingface_hub",
    "mlxceld.admin",
    "mlxceld.engine",
    "mlxceld.telemetry",
)


def test_help_loads_nothing_heavy():
    program = (
        "import sys\n"
        "from mlxctl.main import run\n"
        "code = run(['--help'])\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), code, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[] 0"
    assert done.stdout.startswith("Usage: mlxctl")


def test_a_command_loads_no_other_one():
    program = (
        "import sys\n"
        "from mlxctl.main import run\n"
        "code = run(['--socket', '/nowhere', 'status'])\n"
        "print(sorted(m for m in sys.modules if m.startswith('mlxctl.commands.')), code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['mlxctl.commands.daemon'] 3"


@pytest.mark.parametrize(
    ("arguments", "code", "stream"),
    [(["--version"], 0, "stdout"), ([], 2, "stderr"), (["cache"], 2, "stderr")],
)
def test_the_module_runs_as_the_script_does(arguments, code, stream):
    done = subprocess.run(
        [sys.executable, "-m", "mlxctl", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert "mlxctl" in getattr(done, stream)
