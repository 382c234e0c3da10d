import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from daemon_harness import run_to_end
from mlxceld import __version__
from mlxceld.cli import check_config, main, serve, start
from mlxceld.process.pidfile import StateLock
from mlxceld.process.stop import StopOutcome, StopResult
from tiny_gguf import llama_metadata, llama_tensors, tiny_llama, write_gguf
from tiny_models import write_tiny_model


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "STATE_DIRECTORY", "MLXCEL_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MLXCEL_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def flags(command: click.Command) -> set[str]:
    return {
        name
        for param in command.params
        for name in (*param.opts, *param.secondary_opts)
        if name.startswith("-")
    }


def test_start_and_check_config_take_what_serve_takes() -> None:
    assert flags(check_config) == flags(serve)
    assert flags(start) == flags(serve) | {"--detach"}


def test_the_first_word_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from mlxceld.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "heavy = {'aiohttp', 'asyncio', 'mlx', 'pydantic', 'transformers', 'yaml',"
        " 'huggingface_hub', 'prometheus_client', 'daemon'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"mlxceld {__version__}\n"


def test_check_config_shows_values_and_sources(home: Path) -> None:
    config = home / "settings.yaml"
    config.write_text("max_queue: 7\nport: 1234\n")
    result = CliRunner().invoke(
        main,
        ["check-config", "--config", str(config), "--port", "4321"],
        env={"MLXCEL_HOST": "localhost", "MLXCEL_PORT": "5555", "MLXCEL_MAX_BATCH_SIZE": "no"},
    )
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines()}
    assert rows["max_queue"] == ["7", "file"]
    assert rows["port"] == ["4321", "flag"]
    assert rows["host"] == ["localhost", "env"]
    assert rows["max_batch_size"] == ["8", "default"]
    assert "--port is given, so MLXCEL_PORT is ignored" in result.stderr
    assert "MLXCEL_MAX_BATCH_SIZE is ignored" in result.stderr
    assert "no model is set" in result.stderr


def test_check_config_reads_the_keys_too(home: Path) -> None:
    keys = home / "keys"
    keys.write_text("ann: \n")
    result = CliRunner().invoke(main, ["check-config", "--api-keys-file", str(keys)])
    assert result.exit_code == 78
    assert f"api_keys_file: {keys}:1: " in result.stderr


@pytest.mark.parametrize(
    ("outcome", "code", "stream", "text"),
    [
        (StopOutcome.STOPPED, 0, "stdout", "stopped: "),
        (StopOutcome.KILLED, 0, "stdout", "killed: "),
        (StopOutcome.STILL_RUNNING, 1, "stderr", "still runs after 90 s; --force kills it"),
        (StopOutcome.NOT_RUNNING, 0, "stderr", "no daemon runs"),
    ],
)
def test_stop_says_how_it_went(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: StopOutcome,
    code: int,
    stream: str,
    text: str,
) -> None:
    asked: dict[str, object] = {}

    def stop(state_dir: Path, **options: object) -> StopResult:
        asked.update(options, state_dir=state_dir)
        return StopResult(outcome, None)

    monkeypatch.setattr("mlxceld.process.stop.stop_daemon", stop)
    monkeypatch.setenv("MLXCEL_DRAIN_TIMEOUT", "60")
    result = CliRunner().invoke(main, ["stop"])
    assert result.exit_code == code
    assert text in getattr(result, stream)
    assert asked == {"state_dir": home / "state", "timeout": 90.0, "force": False}


def test_stop_works_with_a_settings_file_that_has_broken_since(home: Path) -> None:
    (home / "bad.yaml").write_text("nonsense: 1\n")
    result = CliRunner().invoke(main, ["stop"], env={"MLXCEL_CONFIG": str(home / "bad.yaml")})
    assert result.exit_code == 0
    assert "the file is passed over" in result.stderr
    assert "no daemon runs" in result.stderr


def test_stop_takes_durations(home: Path) -> None:
    result = CliRunner().invoke(main, ["stop", "--timeout", "soon"])
    assert result.exit_code == 2
    assert re.search(r"--timeout.*90s", result.stderr, re.DOTALL)


def test_a_detached_start_beside_a_daemon_forks_nothing(home: Path) -> None:
    lock = StateLock(home / "state")
    lock.acquire(started_at=0)
    result = CliRunner().invoke(main, ["start", "--detach", "--model", "demo"])
    assert result.exit_code == 1
    assert "already runs" in result.stderr
    assert not (home / "state" / "mlxceld.log").exists()
    lock.release()


def test_models_are_imported_once_and_listed(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", llama_metadata(), llama_tensors(tiny_llama()))
    common = ("--state-dir", str(tmp_path / "state"))
    assert run_to_end("models", "list", *common, home=tmp_path).stdout == ""

    first = run_to_end("models", "import", str(file), *common, home=tmp_path)
    assert first.returncode == 0, first.stderr
    folder = Path(first.stdout.strip())
    assert (folder / "model.safetensors").is_file()
    assert "importing tiny.gguf" in first.stderr

    again = run_to_end("models", "import", str(file), *common, home=tmp_path)
    assert (again.returncode, again.stdout) == (0, first.stdout)
    listed = run_to_end("models", "list", *common, home=tmp_path).stdout
    assert listed.rstrip("\n").split("\t") == [folder.name, "0 MiB", str(folder)]


def test_what_serve_takes_as_a_model_can_be_imported_too(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    write_tiny_model(folder, "llama")
    done = run_to_end("models", "import", str(folder), home=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{folder}\n")


def test_a_file_that_is_not_there_is_not_imported(tmp_path: Path) -> None:
    gone = run_to_end("models", "import", str(tmp_path / "gone.gguf"), home=tmp_path)
    assert gone.returncode == 1
    assert gone.stderr == f"mlxceld: model {tmp_path / 'gone.gguf'}: no such file\n"
