"""``mlxceld serve`` as a process; a start costs seconds, so each test tells a whole story."""

import contextlib
import json
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon_harness import HeldModel, Manager, Served, get, run_to_end, stream
from mlxceld.process.pidfile import read_holder
from tiny_models import TinyModels

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")

CONTEXT = 100_000
"""Tokens: room for an answer that outlasts any test."""


@pytest.fixture(scope="module")
def model(tiny_models: TinyModels) -> Path:
    return tiny_models.folder("llama", context_length=CONTEXT)


@pytest.fixture
def held_model(model: Path, tmp_path: Path) -> HeldModel:
    return HeldModel(Path(shutil.copytree(model, tmp_path / "tiny")))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*arguments: str, **environ: str) -> Served:
        state = str(tmp_path / "state")
        started.append(Served(tmp_path, "--state-dir", state, *arguments, **environ))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.fixture
def manager() -> Iterator[Manager]:
    made = Manager()
    yield made
    made.close()


def test_a_life_under_a_manager(
    serve: Callable[..., Served], held_model: HeldModel, manager: Manager, tmp_path: Path
) -> None:
    config, keys = tmp_path / "settings.yaml", tmp_path / "keys"
    config.write_text("log.level: info\n")
    keys.write_text("ann: secret-a\n")
    keys.chmod(0o600)
    served = serve(
        *("--model", str(held_model.folder), "--config", str(config)),
        *("--api-keys-file", str(keys)),
        **manager.environ,
        WATCHDOG_USEC="200000",
    )

    # While it loads it lives, and is not ready, and the manager is not told that it is.
    url = served.until_listening()
    assert get(f"{url}/livez") == (200, {"status": "alive"})
    code, body = get(f"{url}/readyz")
    assert code == 503
    assert "loading" in body["reason"]
    manager.hear(lambda word: "EXTEND_TIMEOUT_USEC" in word)
    held_model.release(served)
    assert served.until_ready() == url
    manager.hear(lambda word: "READY" in word)
    assert [word for word in manager.told if "WATCHDOG" in word] == []
    assert get(f"{url}/readyz") == (200, {"status": "ready"})
    manager.hear(lambda word: word == {"WATCHDOG": "1"})

    # The state folder says who is here, and is private.
    state = tmp_path / "state"
    holder = read_holder(state)
    assert holder is not None
    assert (holder.pid, holder.address) == (served.process.pid, url)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "admin.sock").stat().st_mode) == 0o600

    # A second daemon is told who is here, by the folder and by the port.
    port = url.rpartition(":")[2]
    common = ("serve", "--model", str(held_model.folder))
    second = run_to_end(*common, "--state-dir", str(state), "--port", "0", home=tmp_path)
    assert second.returncode == 1
    assert f"process {holder.pid} ({url}) already runs" in second.stderr
    other = str(tmp_path / "other")
    third = run_to_end(*common, "--state-dir", other, "--port", port, home=tmp_path)
    assert third.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use by process {holder.pid}" in third.stderr
    assert read_holder(tmp_path / "other") is None

    # SIGHUP reads keys and level again, and says what needs a restart.
    keys.write_text("ann: secret-a\nbob: secret-b\n")
    config.write_text("log.level: debug\nmax_queue: 7\n")
    served.send(signal.SIGHUP)
    assert "MONOTONIC_USEC" in manager.hear(lambda word: "RELOADING" in word)
    manager.hear(lambda word: "READY" in word)
    served.wait_for("log.level info -> debug")
    served.wait_for("API keys: ann, bob")
    assert "max_queue" in served.wait_for("needs a restart")["message"]
    assert served.wait_for("config.reload of daemon by SIGHUP: ok")["after"]["api_keys_file"] == [
        "ann",
        "bob",
    ]

    # A reload of what is wrong changes nothing.
    keys.write_text("nonsense\n")
    served.send(signal.SIGHUP)
    served.wait_for("config.reload of daemon by SIGHUP: invalid_config")

    assert served.stop() == 0
    manager.hear(lambda word: "STOPPING" in word)
    assert read_holder(state) is None
    assert not (state / "admin.sock").exists()


def test_what_runs_is_finished_then_limited_then_cut_off(
    serve: Callable[..., Served], model: Path
) -> None:
    # Killed, it leaves a lock file and a socket behind, which keep nobody out.
    killed = serve("--model", str(model))
    killed.until_ready()
    assert killed.stop(signal.SIGKILL) == -signal.SIGKILL

    # One signal: the request is finished, and no connection is taken any more.
    served = serve("--model", str(model))
    url = served.until_ready()
    answer = stream(url, max_tokens=500)
    next(answer)
    served.send(signal.SIGTERM)
    served.wait_for("SIGTERM: finishing 1 requests")
    pieces = list(answer)
    assert pieces[-1] == "[DONE]"
    assert json.loads(pieces[-2])["choices"][0]["finish_reason"] == "length"
    assert served.wait() == 0

    # Past the limit it is cut off, and the stop is a clean one all the same.
    served = serve("--model", str(model), "--drain-timeout", "0")
    answer = stream(served.until_ready(), max_tokens=CONTEXT - 100)
    next(answer)
    served.send(signal.SIGINT)
    pieces = list(answer)
    assert "shutting down" in json.loads(pieces[-1])["error"]["message"]
    assert served.wait() == 0
    served.wait_for("1 requests run after 0 s and are cut off")

    # A second signal waits for nothing.
    served = serve("--model", str(model), "--drain-timeout", "1h")
    answer = stream(served.until_ready(), max_tokens=CONTEXT - 100)
    next(answer)
    served.send(signal.SIGTERM)
    served.wait_for("SIGTERM: finishing 1 requests")
    assert served.stop() == 128 + signal.SIGTERM
    cut: list[str] = []
    with contextlib.suppress(ConnectionError):
        cut.extend(answer)
    assert "[DONE]" not in cut


def test_a_stop_while_loading_is_a_clean_stop(
    serve: Callable[..., Served], held_model: HeldModel
) -> None:
    served = serve("--model", str(held_model.folder))
    served.until_listening()
    assert served.stop() == 0
    served.wait_for("stopped while loading")
