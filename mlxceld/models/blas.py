"""A fast matrix library in place of MLX's reference one, on Linux without a GPU.

MLX's CPU wheel brings a reference BLAS, some fifty times slower than OpenBLAS. Symbols of a
library that is loaded globally *before* MLX are found first, so that loading OpenBLAS this way
puts it in the place of the reference one. Nothing in here imports MLX.

``python -m mlxceld.models.blas MODULE ...`` runs another program that way: any module that uses
MLX, with the arguments that follow.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SYSTEM_LIBRARIES = ("libopenblas.so.0", "libopenblas.so")

_PACKAGES = ("ngsolve-openblas", "cmeel-openblas")
"""Distributions whose OpenBLAS has the plain symbol names that MLX looks for.

Those made for NumPy and SciPy prefix theirs and cannot serve.
"""

_NEEDED_SYMBOLS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm", "sgesdd_")

_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")

_ADVICE = (
    "install OpenBLAS: apt-get install libopenblas0-pthread (Debian, Ubuntu),"
    f" dnf install openblas (Fedora), or pip install {_PACKAGES[0]}"
)


@dataclass(frozen=True, slots=True)
class BlasReport:
    """Which matrix library MLX will use.

    ``needed`` is False where a GPU or Accelerate computes; ``fast`` whether all is well;
    ``library`` the file that was loaded; ``text`` one line for the log.
    """

    needed: bool
    fast: bool
    library: str | None
    text: str


@dataclass(frozen=True, slots=True)
class ThreadControl:
    """How many threads OpenBLAS began with, and how that is changed while it runs."""

    threads: int
    set_threads: Callable[[int], None]


class _State:
    report: BlasReport | None = None
    control: ThreadControl | None = None


def gpu_backend() -> str | None:
    """The GPU backend that MLX has here, "metal" or "cuda", without importing it."""
    if sys.platform == "darwin":
        return "metal"
    for name in ("mlx-cuda-13", "mlx-cuda-12", "mlx-cuda"):
        if _distribution(name) is not None:
            return "cuda"
    return None


def interpose() -> BlasReport:
    """Load OpenBLAS in front of MLX where MLX computes on a Linux CPU.

    To be called once before ``mlx.core`` is imported: raises RuntimeError if it is too late. A
    second call returns the first one's report.
    """
    if _State.report is None:
        _State.report = _interpose()
    return _State.report


def thread_control() -> ThreadControl | None:
    """The control of the threads of the OpenBLAS that :func:`interpose` loaded.

    None where there is none, it has one thread anyway, or the environment sets their number.
    """
    return _State.control


def _interpose() -> BlasReport:
    backend = gpu_backend()
    if backend is not None:
        return BlasReport(False, True, None, f"matrix library: MLX's own ({backend})")
    if "mlx.core" in sys.modules:
        raise RuntimeError("OpenBLAS must be loaded before mlx.core is imported")
    reasons = []
    for name in _SYSTEM_LIBRARIES:
        try:
            return _load(name, name)
        except OSError as error:
            reasons.append(str(error))
    for library in _packaged_libraries():
        try:
            with _staged(library) as staged:
                return _load(str(staged), str(library))
        except OSError as error:
            reasons.append(str(error))
    detail = "; ".join(reason for reason in reasons if "No such file" not in reason)
    return BlasReport(
        True,
        False,
        None,
        "matrix library: MLX's reference BLAS, which is very slow; "
        + _ADVICE
        + (f" (tried: {detail})" if detail else ""),
    )


def _load(name: str, shown: str) -> BlasReport:
    """Make a library's symbols the first that MLX finds; raises OSError if it does not fit."""
    library = ctypes.CDLL(name, mode=ctypes.RTLD_LOCAL)
    for symbol in _NEEDED_SYMBOLS:
        if not hasattr(library, symbol):
            raise OSError(f"{shown}: no symbol {symbol}")
    config = ""
    if hasattr(library, "openblas_get_config"):
        library.openblas_get_config.restype = ctypes.c_char_p
        config = (library.openblas_get_config() or b"").decode("ascii", "replace")
    if "USE64BITINT" in config:
        raise OSError(f"{shown}: built for 64-bit integers, MLX passes 32-bit ones")
    ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    _State.control = _control(library)
    version = " ".join(config.split()[:2]) or "OpenBLAS"
    return BlasReport(True, True, shown, f"matrix library: {version} ({shown})")


def _control(library: ctypes.CDLL) -> ThreadControl | None:
    if any(os.environ.get(name) for name in _THREAD_VARIABLES):
        return None
    try:
        get, change = library.openblas_get_num_threads, library.openblas_set_num_threads
    except AttributeError:
        return None
    threads = int(get())
    return ThreadControl(threads, lambda number: change(number)) if threads > 1 else None


def _packaged_libraries() -> Iterator[Path]:
    """OpenBLAS libraries that installed distributions carry."""
    for package in _PACKAGES:
        distribution = _distribution(package)
        for file in (distribution.files if distribution else None) or ():
            if file.name.startswith("libopenblas") and ".so" in file.name:
                path = Path(str(file.locate()))
                if path.is_file():
                    yield path


@contextmanager
def _staged(library: Path) -> Iterator[Path]:
    """The library in a folder where it finds the Fortran runtime that MLX's own wheel brings.

    It looks for its runtime beside itself under the common name; machines without a Fortran
    compiler have none elsewhere. What is loaded stays loaded when the folder is gone.
    """
    with tempfile.TemporaryDirectory(prefix="mlxceld-blas-") as folder:
        staged = Path(folder, library.name)
        staged.symlink_to(library)
        mlx = _distribution("mlx-cpu")
        for file in (mlx.files if mlx else None) or ():
            if file.parent.name == "mlx_cpu.libs":
                target = Path(str(file.locate()))
                Path(folder, file.name).symlink_to(target)
                if file.name.startswith("libgfortran-"):
                    Path(folder, "libgfortran.so.5").symlink_to(target)
        yield staged


def _distribution(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Run the module named by the first argument as a program, with OpenBLAS in front of MLX."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m mlxceld.models.blas MODULE [ARGUMENT ...]")
    print(interpose().text, file=sys.stderr, flush=True)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
