"""Imports a GGUF file once, so that a folder is there whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mlxceld.models.errors import ModelError, one_line
from mlxceld.models.gguf.blocks import (
    GROUP_SIZE,
    bits_of,
    byte_length,
    read_float32,
    read_plain,
    read_quantized,
)
from mlxceld.models.gguf.llama import LlamaFile, TensorPlan
from mlxceld.models.gguf.reader import GgufFile
from mlxceld.models.gguf.tokenizer import GgufVocabulary
from mlxceld.models.gguf.writer import TensorSpec, file_size, write_safetensors
from mlxceld.models.progress import Progress

_FORMAT = 1
"""Raised when the same file would be imported differently: it is then imported anew."""

_HEAD_BYTES = 2**20
_LONGEST_ERROR = 1000
_TEMPORARY = ".importing-"
_MARGIN_BYTES = 64 * 2**20
"""Disk space left free beside the weights, for the rest of the folder."""


def import_gguf(path: Path, state_dir: Path, progress: Progress, *, quantized: bool) -> Path:
    """The model folder of a GGUF file under ``state_dir``/models, made if it is not there.

    ``quantized`` keeps the file's quantization, for a GPU; without it the weights become float32,
    which is what a CPU computes fast. Safe against a kill at any point and against another import
    at the same time. Raises ModelError if the file cannot be imported, before anything is
    written, or if the disk does not take it.
    """
    models = state_dir / "models"
    target = models / _folder_name(path, quantized)
    if target.is_dir():
        return target
    source, vocabulary = _checked(path)
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _exclusive(models, progress):
            if not target.is_dir():
                _sweep(models)
                _make(source, vocabulary, target, quantized, progress)
    except OSError as error:
        raise ModelError(f"{path}: cannot be imported into {models}: {error}") from error
    return target


def _checked(path: Path) -> tuple[LlamaFile, GgufVocabulary]:
    """The file's two halves, after all of it has been looked at but the weights' values."""
    try:
        source = LlamaFile(GgufFile(path))
        vocabulary = GgufVocabulary(source.file)
        for plan in source.plans:
            source.file.raw(plan.info, byte_length(plan.info))
        source.config()
        vocabulary.build()
    except ModelError as error:
        # A line, whatever names the file has for its parts.
        raise ModelError(one_line(error, _LONGEST_ERROR)) from error
    except Exception as error:
        raise ModelError(f"{path}: damaged, cannot be imported: {one_line(error)}") from error
    return source, vocabulary


def _make(
    source: LlamaFile,
    vocabulary: GgufVocabulary,
    target: Path,
    quantized: bool,
    progress: Progress,
) -> None:
    outputs = [_Output(source.file, plan, quantized) for plan in source.plans]
    specs = {name: spec for output in outputs for name, spec in output.specs().items()}
    needed = file_size(specs)
    free = shutil.disk_usage(target.parent).free
    if needed + _MARGIN_BYTES > free:
        raise ModelError(
            f"{source.file.path}: the import needs {needed / 2**20:.0f} MiB in {target.parent},"
            f" and {free / 2**20:.0f} MiB are free"
        )
    kind = "its quantized weights" if quantized else "float32 weights"
    progress(f"importing {source.file.path.name} with {kind} ({needed / 2**20:.0f} MiB)")
    folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=target.parent))
    try:
        write_safetensors(
            folder / "model.safetensors", specs, _produce(outputs, needed, source, progress)
        )
        vocabulary.write(folder, source.context_length)
        config = source.config() | vocabulary.token_ids() | _quantization(outputs)
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        (folder / "import.json").write_text(
            json.dumps({"source": str(source.file.path), "format": _FORMAT}, indent=2)
        )
        folder.chmod(0o755)
        for file in (*folder.iterdir(), folder):
            _sync(file)
        folder.rename(target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    progress(f"imported into {target}")


class _Output:
    """One GGUF tensor as the one or three tensors that it becomes."""

    def __init__(self, file: GgufFile, plan: TensorPlan, quantized: bool) -> None:
        self._file = file
        self._quantized = quantized
        self.plan = plan
        self.bits = bits_of(plan.info) if quantized else None

    def specs(self) -> dict[str, TensorSpec]:
        """Names, types and shapes, without reading the tensor."""
        shape, target = self.plan.info.shape, self.plan.target
        if self.bits is None:
            dtype = "float16" if self._quantized else "float32"
            return {f"{target}.{self.plan.suffix}": TensorSpec(dtype, shape)}
        rows, columns = shape[:-1], shape[-1]
        groups = (*rows, columns // GROUP_SIZE)
        return {
            f"{target}.weight": TensorSpec("uint32", (*rows, columns * self.bits // 32)),
            f"{target}.scales": TensorSpec("float16", groups),
            f"{target}.biases": TensorSpec("float16", groups),
        }

    def tensors(self) -> dict[str, Any]:
        """The tensors themselves, rows in mlx-lm's order."""
        plan = self.plan
        if self.bits is not None:
            parts = read_quantized(self._file, plan.info)
            arrays = {"weight": parts.packed, "scales": parts.scales, "biases": parts.biases}
            return {f"{plan.target}.{name}": plan.reorder(a) for name, a in arrays.items()}
        if self._quantized:
            # One type throughout: a float32 norm would carry all activations up to float32.
            array = read_plain(self._file, plan.info).astype(np.float16)
        else:
            array = read_float32(self._file, plan.info)
        return {f"{plan.target}.{plan.suffix}": plan.reorder(array)}


def _produce(
    outputs: list[_Output], total: int, source: LlamaFile, progress: Progress
) -> Iterator[tuple[str, Any]]:
    """The tensors one by one, with a line of progress each tenth."""
    done = tenth = 0
    for output in outputs:
        for name, array in output.tensors().items():
            done += array.nbytes
            yield name, array
        if done * 10 // total > tenth:
            tenth = done * 10 // total
            progress(f"importing {source.file.path.name}: {tenth * 10}%")


def _quantization(outputs: list[_Output]) -> dict[str, Any]:
    """The config's quantization section, with an entry for each layer that differs."""
    bits = [output.bits for output in outputs if output.bits is not None]
    if not bits:
        return {}
    common = max(set(bits), key=bits.count)
    section: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": common}
    for output in outputs:
        if output.bits is not None and output.bits != common:
            section[output.plan.target] = {"group_size": GROUP_SIZE, "bits": output.bits}
    return {"quantization": section}


def _folder_name(path: Path, quantized: bool) -> str:
    """Stem, what identifies the file, and the kind of weights: another file, another folder."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
        stat = path.stat()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    digest = hashlib.sha256(f"{_FORMAT}:{stat.st_size}:{stat.st_mtime_ns}:".encode() + head)
    return f"{path.stem}-{digest.hexdigest()[:12]}-{'q' if quantized else 'f32'}"


@contextmanager
def _exclusive(models: Path, progress: Progress) -> Iterator[None]:
    """Hold the one lock of all imports into this folder; the system lets go of it at a kill."""
    with (models / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another import to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sweep(models: Path) -> None:
    """Remove what killed imports left; under the lock nobody is at work on any of it."""
    for leftover in models.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
