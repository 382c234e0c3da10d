"""``mlxctl wait``: it polls, and knows what is worth waiting for."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from admin_harness import CacheEngine, LiveAdmin, request_status, resolved_settings
from mlxceld.telemetry.status import EngineState
from mlxctl.context import Ctl
from mlxctl.main import run


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mx") as folder:
        yield Path(folder) / "admin.sock"


class Time:
    """A clock that moves when someone sleeps, and what happens meanwhile."""

    def __init__(self, meanwhile: Callable[[int], None] = lambda n: None) -> None:
        self.now = 0.0
        self.sleeps = 0
        self._meanwhile = meanwhile

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1
        self._meanwhile(self.sleeps)

    def ctl(self, path: Path) -> Ctl:
        return Ctl(options={"socket": path}, sleep=self.sleep, clock=lambda: self.now)


def test_it_waits_for_a_daemon_that_is_not_there_yet(path, capsys):
    engine = CacheEngine(state=EngineState.LOADING)
    admin = LiveAdmin(engine, resolved_settings(), path)

    def meanwhile(number: int) -> None:
        if number == 3:
            admin.__enter__()
        if number == 6:
            engine.base = CacheEngine().base

    time = Time(meanwhile)
    try:
        assert run(["wait", "--for", "ready"], time.ctl(path)) == 0
    finally:
        admin.__exit__()
    assert time.sleeps == 6
    assert capsys.readouterr().out.split() == ["state", "ready"]


def test_it_gives_up_at_the_limit_with_the_last_it_heard(path, capsys):
    time = Time()
    assert run(["wait", "--for", "ready", "--timeout", "2s"], time.ctl(path)) == 6
    assert time.now == 2.0
    assert "there is no socket" in capsys.readouterr().err


def test_a_failed_daemon_is_not_waited_for(path, capsys):
    engine = CacheEngine(state=EngineState.FAILED)
    object.__setattr__(engine.base, "detail", "a shard is missing")
    time = Time()
    with LiveAdmin(engine, resolved_settings(), path):
        assert run(["wait", "--for", "ready"], time.ctl(path)) == 1
    assert time.sleeps == 0
    assert "the daemon failed: a shard is missing" in capsys.readouterr().err


def test_idle_waits_for_the_last_request(path):
    engine = CacheEngine()
    engine.requests["r"] = request_status("r")
    time = Time(lambda n: engine.requests.clear() if n == 2 else None)
    with LiveAdmin(engine, resolved_settings(), path):
        assert run(["wait", "--for", "idle", "--timeout", "10"], time.ctl(path)) == 0
    assert time.sleeps == 2


@pytest.mark.parametrize("arguments", [[], ["--for", "lunch"], ["--for", "idle", "--timeout", "x"]])
def test_what_to_wait_for_is_required_and_checked(path, arguments, capsys):
    assert run(["wait", *arguments], Time().ctl(path)) == 2
