"""How many files may be open is the daemon's to say, not a library's."""

import subprocess
import sys
from pathlib import Path

import pytest

from mlxceld.models.file_limit import file_limit_kept
from tiny_models import TinyModels

resource = pytest.importorskip("resource")

_LOAD = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (900, 1000))
from mlxceld.config import resolve
from mlxceld.daemon import load_model
given = {"model": sys.argv[1], "state_dir": Path(sys.argv[2])}
load_model(resolve(given, environ={}, search=False).settings)(lambda line: None)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_loading_a_model_leaves_the_limit_as_it_is(tiny_models: TinyModels, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _LOAD, str(tiny_models.folder("llama")), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.stdout == "(900, 1000)\n", ended.stderr


def test_other_limits_can_be_set_and_all_again_afterwards() -> None:
    real = resource.setrlimit
    core = resource.getrlimit(resource.RLIMIT_CORE)
    with file_limit_kept():
        resource.setrlimit(resource.RLIMIT_CORE, (0, core[1]))
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, core[1])
    assert resource.setrlimit is real
    resource.setrlimit(resource.RLIMIT_CORE, core)
