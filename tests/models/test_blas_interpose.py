from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from mlxceld.models import blas


def run(code: str, *, expect: int = 0) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stderr
    return done.stdout + done.stderr


ONLY_CPU = pytest.mark.skipif(blas.gpu_backend() is not None, reason="a GPU computes here")


@ONLY_CPU
def test_it_says_which_library_serves_and_leaves_mlx_alone() -> None:
    out = run(
        "import sys; from mlxceld.models.blas import interpose\n"
        "report = interpose()\n"
        "assert report.needed and report is interpose()\n"
        "assert 'mlx.core' not in sys.modules and 'mlx_lm' not in sys.modules\n"
        "print(report.fast, report.text)"
    )
    fast, text = out.strip().split(" ", 1)
    expected = "matrix library: OpenBLAS" if fast == "True" else "matrix library: MLX's reference"
    assert text.startswith(expected)


@ONLY_CPU
def test_mlx_multiplies_with_it() -> None:
    run(
        "import ctypes; from mlxceld.models.blas import interpose\n"
        "report = interpose()\n"
        "import mlx.core as mx\n"
        "a = mx.arange(12.0).reshape(3, 4)\n"
        "assert (a @ a.T).tolist() == [[14, 38, 62], [38, 126, 214], [62, 214, 366]]\n"
        "found = ctypes.CDLL(None)\n"
        "assert hasattr(found, 'openblas_get_config') == report.fast\n"
    )


@ONLY_CPU
def test_too_late_is_an_error() -> None:
    out = run("import mlx.core; from mlxceld.models.blas import interpose; interpose()", expect=1)
    assert "before mlx.core is imported" in out


@ONLY_CPU
def test_without_any_library_it_says_what_to_install() -> None:
    out = run(
        "from mlxceld.models import blas\n"
        "blas._SYSTEM_LIBRARIES = ('libnonesuch.so.7',)\n"
        "blas._PACKAGES = ()\n"
        "report = blas.interpose()\n"
        "assert report.needed and not report.fast and report.library is None\n"
        "print(report.text)"
    )
    assert "very slow; install OpenBLAS: apt-get install libopenblas0-pthread" in out
    assert "pip install ngsolve-openblas" in out


@ONLY_CPU
def test_a_library_without_the_symbols_is_passed_over() -> None:
    out = run(
        "from mlxceld.models import blas\n"
        "blas._SYSTEM_LIBRARIES = ('libc.so.6',)\n"
        "blas._PACKAGES = ()\n"
        "print(blas.interpose().text)"
    )
    assert "libc.so.6: no symbol cblas_sgemm" in out


@ONLY_CPU
def test_a_packaged_library_serves_where_the_system_has_none() -> None:
    try:
        importlib.metadata.distribution("ngsolve-openblas")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no package with an OpenBLAS of plain names is installed")
    out = run(
        "import sys; from mlxceld.models import blas\n"
        "blas._SYSTEM_LIBRARIES = ()\n"
        "print(blas.interpose())\n"
        "import mlx.core as mx\n"
        "a = mx.arange(12.0).reshape(3, 4)\n"
        "assert (a @ a.T).tolist() == [[14, 38, 62], [38, 126, 214], [62, 214, 366]]\n"
    )
    assert "fast=True" in out


def test_a_staged_library_lies_beside_its_runtime(tmp_path: Path) -> None:
    library = tmp_path / "libopenblas.so"
    library.write_bytes(b"")
    with blas._staged(library) as staged:
        assert staged.resolve() == library
        names = {entry.name for entry in staged.parent.iterdir()}
    assert not staged.parent.exists()
    wheels = [d for d in importlib.metadata.distributions() if d.name == "mlx-cpu"]
    assert ("libgfortran.so.5" in names) == bool(wheels)


@ONLY_CPU
def test_another_program_runs_behind_it(tmp_path: Path) -> None:
    (tmp_path / "peer.py").write_text(
        "import ctypes, sys\n"
        "import mlx.core\n"
        "print(__name__, sys.argv[1:], hasattr(ctypes.CDLL(None), 'openblas_get_config'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mlxceld.models.blas", "peer", "serve", "--port", "7"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    fast = "OpenBLAS" in done.stderr
    assert done.stderr.startswith("matrix library: ")
    assert done.stdout == f"__main__ ['serve', '--port', '7'] {fast}\n"


def test_without_a_program_it_says_how_it_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mlxceld.models.blas"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("usage: ")
