from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlxceld.models.errors import ModelError
from mlxceld.models.library import list_models
from mlxceld.models.locate import import_model, resolve_model
from tiny_gguf import llama_metadata, llama_tensors, tiny_llama, write_gguf
from tiny_models import TinyModels


def resolve(name: str, state: Path, lines: list[str] | None = None) -> object:
    progress = [] if lines is None else lines
    return resolve_model(name, state_dir=state, progress=progress.append)


def test_a_folder_is_itself(tiny_model_folders: TinyModels, tmp_path: Path) -> None:
    folder = tiny_model_folders.folder("llama")
    found = resolve_model(f" {folder} ", state_dir=tmp_path, progress=[].append)
    assert (found.path, found.id, found.origin) == (folder, "llama", "folder")


def test_a_relative_folder_has_its_own_name(
    tiny_model_folders: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model_folders.folder("llama")
    monkeypatch.chdir(folder)
    found = resolve_model(".", state_dir=tmp_path, progress=[].append)
    assert (found.path, found.id) == (folder, "llama")


def test_a_gguf_file_is_imported_under_its_stem(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "Tiny.F32.gguf", llama_metadata(), llama_tensors(tiny_llama()))
    found = resolve_model(str(file), state_dir=tmp_path / "state", progress=[].append)
    assert found.id == "Tiny.F32"
    assert found.path.parent == tmp_path / "state/models"
    assert import_model(file, state_dir=tmp_path / "state", progress=[].append) == found
    (listed,) = list_models(tmp_path / "state")
    assert (listed.name, listed.path, listed.source) == (found.path.name, found.path, str(file))
    assert listed.bytes == sum(part.stat().st_size for part in found.path.iterdir())


def test_no_imports_are_an_empty_list(tmp_path: Path) -> None:
    assert list_models(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "no model given; give a local MLX model folder"),
        ("nothing-here", "model nothing-here: not found; give a local MLX model folder"),
        ("./nothing/here", r"model \./nothing/here: not found"),
        ("a/b/c", "model a/b/c: not found"),
        ("nothing.gguf", r"model nothing\.gguf: no such file"),
    ],
)
def test_what_is_not_there_says_what_can_be_given(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(name, tmp_path)


def test_other_files_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ModelError, match="not a model file"):
        resolve(str(tmp_path / "notes.txt"), tmp_path)
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve(str(tmp_path), tmp_path)
    (tmp_path / "fake.gguf").write_text("x" * 100)
    with pytest.raises(ModelError, match=r"fake\.gguf: not a GGUF file"):
        resolve(str(tmp_path / "fake.gguf"), tmp_path)


def test_finding_and_importing_never_import_mlx(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "t.gguf", llama_metadata(), llama_tensors(tiny_llama()))
    code = (
        "import sys; from pathlib import Path\n"
        "from mlxceld.models.locate import resolve_model\n"
        "resolve_model(sys.argv[1], state_dir=Path(sys.argv[2]), progress=print)\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('mlx', 'mlx_lm')]\n"
    )
    subprocess.run([sys.executable, "-c", code, file, tmp_path / "state"], check=True)
