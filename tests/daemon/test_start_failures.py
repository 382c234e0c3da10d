"""Starts that come to nothing say why in one line, with the exit code that fits."""

import json
import socket
from pathlib import Path

import pytest

from daemon_harness import run_to_end


def failed(home: Path, *arguments: str, **environ: str) -> tuple[int, str]:
    ended = run_to_end(*arguments, home=home, **environ)
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert ended.stdout == ""
    assert len(lines) == 1, ended.stderr
    return ended.returncode, lines[0]


def test_no_model(tmp_path: Path) -> None:
    code, line = failed(tmp_path, "serve", "--port", "0")
    assert code == 78
    assert line.startswith("mlxceld: no model given; give --model")
    assert "demo" in line


def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "llama"}')
    code, line = failed(tmp_path, "serve", "--port", "0", "--model", str(broken))
    assert code == 1
    assert line == (f"mlxceld: model folder {broken}: no weights (expected model*.safetensors)")


def test_a_detached_start_tells_the_error_of_its_daemon(tmp_path: Path) -> None:
    code, line = failed(
        *(tmp_path, "start", "--detach", "--port", "0", "--model", "no-such-model"),
    )
    assert code == 1
    assert line.startswith("mlxceld: model no-such-model: not found; give a local MLX model folder")
    log = tmp_path / ".local/state/mlxceld/mlxceld.log"
    assert "no-such-model: not found" in log.read_text()


def test_a_detached_start_without_detach(tmp_path: Path) -> None:
    ended = run_to_end("start", "--model", "demo", home=tmp_path)
    assert ended.returncode == 2
    assert "--detach" in ended.stderr


def test_detaching_under_a_manager(tmp_path: Path) -> None:
    code, line = failed(
        tmp_path, "start", "--detach", "--model", "demo", NOTIFY_SOCKET=str(tmp_path / "socket")
    )
    assert code == 1
    assert line.startswith("mlxceld: systemd runs this process")
    assert "`mlxceld serve`" in line


@pytest.mark.parametrize("command", [("serve",), ("start", "--detach"), ("check-config",)])
def test_a_bad_file_names_everything_that_is_wrong(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    config = tmp_path / "bad.yaml"
    config.write_text("prot: 1\nmax_queue: lots\n")
    ended = run_to_end(*command, "--config", str(config), home=tmp_path)
    assert ended.returncode == 78
    first, second = ended.stderr.splitlines()
    assert first.startswith(f"{config}:1:1 prot: ")
    assert "port" in first
    assert second.startswith(f"{config}:2:12 max_queue: ")


def test_a_bad_flag_is_a_usage_error(tmp_path: Path) -> None:
    ended = run_to_end("serve", "--port", "many", home=tmp_path)
    assert ended.returncode == 2
    assert "many" in ended.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_public_host_without_keys(tmp_path: Path, host: str) -> None:
    code, line = failed(tmp_path, "serve", "--model", "demo", "--host", host, "--port", "0")
    assert code == 78
    assert repr(host) in line
    assert "--api-keys-file" in line
    assert "--insecure" in line


def test_bad_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann secret\n")
    keys.chmod(0o600)
    code, line = failed(tmp_path, "serve", "--model", "demo", "--api-keys-file", str(keys))
    assert code == 78
    assert line.startswith(f"mlxceld: api_keys_file: {keys}:1: ")
    assert "secret" not in line


def test_a_host_that_is_elsewhere(tmp_path: Path) -> None:
    # Of the block that documentation examples use; no machine has it.
    code, line = failed(
        *(tmp_path, "serve", "--model", "demo", "--host", "192.0.2.1", "--insecure"),
    )
    assert code == 78
    assert "'192.0.2.1' is not an address of this machine" in line


def test_a_port_that_somebody_else_has(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, line = failed(tmp_path, "serve", "--model", "demo", "--port", port)
    assert code == 1
    assert f"port {port} on 127.0.0.1 is in use by" in line


def test_a_state_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    code, line = failed(
        tmp_path, "serve", "--model", "demo", "--state-dir", str(tmp_path / "state")
    )
    assert code == 78
    assert f"state_dir {tmp_path / 'state'}: cannot be used" in line


@pytest.mark.parametrize(
    ("mode", "text", "flags", "says"),
    [
        (0o644, "a-token-of-some-length", ["127.0.0.1:0"], "others may use this file"),
        (0o600, "short", ["127.0.0.1:0"], "at least 16 characters"),
        (0o600, "tok\u00e9n-of-some-length", ["127.0.0.1:0"], "printable ASCII"),
        (0o600, "# nothing", ["127.0.0.1:0"], "holds no token"),
        (0o600, "a-token-of-some-length", ["0.0.0.0:0"], "expected a loopback address"),
    ],
)
def test_an_admin_listener_needs_loopback_and_a_safe_token_file(
    tmp_path: Path, mode: int, text: str, flags: list[str], says: str
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(text)
    tokens.chmod(mode)
    code, line = failed(
        *(tmp_path, "serve", "--model", "demo", "--admin-listen", *flags),
        *("--admin-token-file", str(tokens)),
    )
    assert code == 78
    assert says in line
    assert text not in line


def test_an_admin_listener_needs_a_token_file(tmp_path: Path) -> None:
    code, line = failed(tmp_path, "serve", "--model", "demo", "--admin-listen", "127.0.0.1:0")
    assert code == 78
    assert "--admin-token-file" in line


def test_a_permanent_fault_ends_well_under_launchd_and_is_kept_for_people(tmp_path: Path) -> None:
    state = tmp_path / "state"
    result = run_to_end(
        *("serve", "--model", str(tmp_path / "absent"), "--state-dir", str(state), "--port", "0"),
        home=tmp_path,
        XPC_SERVICE_NAME="org.mlxceld.daemon",
    )
    assert result.returncode == 0
    kept = json.loads((state / "last-failure.json").read_text())
    assert str(tmp_path / "absent") in kept["text"]
    assert (kept["permanent"], kept["exit_code"]) == (True, 1)


def test_wrong_usage_ends_for_good_under_a_manager_and_is_kept_for_people(tmp_path: Path) -> None:
    wrong = ("serve", "--modle", "x")
    alone = run_to_end(*wrong, home=tmp_path)
    assert alone.returncode == 2
    assert "--modle" in alone.stderr
    under_launchd = run_to_end(*wrong, home=tmp_path, XPC_SERVICE_NAME="org.mlxceld.daemon")
    assert under_launchd.returncode == 0
    assert "--modle" in under_launchd.stderr
    [record] = tmp_path.rglob("last-failure.json")
    kept = json.loads(record.read_text())
    assert "--modle" in kept["text"]
    assert (kept["exit_code"], kept["permanent"]) == (2, True)
    record.unlink()
    # Its unit tells systemd that this code is permanent.
    under_systemd = run_to_end(*wrong, home=tmp_path, NOTIFY_SOCKET="@nobody")
    assert under_systemd.returncode == 2
    assert list(tmp_path.rglob("last-failure.json")) == [record]
