"""How servers are named, and what is run for each."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from mlxctl.bench import servers
from mlxctl.bench.plan import ServerSpec
from mlxctl.bench.process import clean_environ


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (servers.configured, "--no-apc", "expected NAME=FLAGS"),
        (servers.configured, "=--no-apc", "expected NAME=FLAGS"),
        (servers.running, "a=", "expected NAME=URL"),
        (servers.configured, "a=--model x", "--model is set by the benchmark itself"),
        (servers.configured, "a=--port=1", "--port is set by the benchmark itself"),
        (servers.configured, "a='", "cannot be split"),
        (servers.built, "old=/nowhere/mlxceld", "found '/nowhere/mlxceld'"),
        (servers.built, "", "expected a program"),
        (servers.peer, "ollama", "expected mlx_lm.server, or NAME=COMMAND"),
        (servers.peer, "x=sh -m {model}", "no {port}"),
        (servers.peer, "x=no-such-program {model} {port}", "'no-such-program'"),
        (servers.running, "http://127.0.0.1:1", "expected NAME=URL"),
        (servers.running, "a=127.0.0.1:1", "begins with http://"),
    ],
)
def test_what_cannot_be_read_is_named(read, text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        read(text)


def test_names_tell_servers_apart():
    with pytest.raises(ValueError, match="two servers are called 'a'"):
        servers.unique([servers.running("a=http://x"), servers.configured("a=--no-apc")])


def test_ours_is_run_with_settings_of_its_own(tmp_path: Path):
    spec = servers.configured("small=--max-batch-size 2 --alias 'a b'")
    command = servers.command(spec, model="/m", port=7, folder=tmp_path)
    assert command[:4] == [sys.executable, "-m", "mlxceld", "serve"]
    assert command[-4:] == ["--max-batch-size", "2", "--alias", "a b"]
    settings = Path(command[command.index("--config") + 1])
    assert (settings.parent, settings.read_text()) == (tmp_path, "")
    assert command[command.index("--state-dir") + 1].startswith(str(tmp_path))
    own_file = servers.configured("x=--config mine.yaml")
    words = servers.command(own_file, model="/m", port=7, folder=tmp_path)
    assert words.count("--config") == 1


def test_no_flags_are_the_defaults(tmp_path: Path):
    words = servers.command(servers.configured("on="), model="/m", port=7, folder=tmp_path)
    assert words == servers.command(servers.own(), model="/m", port=7, folder=tmp_path)


def test_another_build_is_run_as_it_is(tmp_path: Path):
    program = tmp_path / "old" / "bin" / "mlxceld"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unnamed, named = servers.built(str(program)), servers.built(f"before={program}")
    assert (unnamed.name, named.name) == ("old", "before")
    assert servers.command(named, model="/m", port=7, folder=tmp_path)[:2] == [
        str(program),
        "serve",
    ]


def test_the_peer_gets_the_same_matrix_library(tmp_path: Path):
    command = servers.command(servers.peer("mlx_lm.server"), model="/m", port=7, folder=tmp_path)
    assert command[1:] == [
        *("-m", "mlxceld.models.blas", "mlx_lm", "server"),
        *("--model", "/m", "--port", "7"),
    ]


def test_any_other_peer_by_its_command(tmp_path: Path):
    spec = servers.peer("mine=sh -c 'serve {model}' --port={port}")
    command = servers.command(spec, model="/m", port=7, folder=tmp_path)
    assert command == ["sh", "-c", "serve /m", "--port=7"]
    assert servers.ready_route(spec) == "/v1/models"
    assert servers.ready_route(servers.own()) == "/readyz"


def test_a_url_may_end_as_clients_give_it():
    live = ServerSpec("live", "url", url="http://h:1")
    assert servers.running("live=http://h:1/v1") == servers.running("live=http://h:1/") == live


def test_the_users_settings_do_not_reach_a_server():
    given = {"MLXCEL_MODEL": "x", "APC_ENABLED": "0", "NOTIFY_SOCKET": "y", "HOME": "/h"}
    assert clean_environ(given) == {"HOME": "/h", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
