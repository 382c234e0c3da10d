"""Every command against a live admin API on a Unix socket."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from admin_harness import (
    BUCKET,
    CacheEngine,
    LiveAdmin,
    request_status,
    resolved_settings,
)
from mlxceld.admin.reports import ReloadReport
from mlxceld.prompt_cache.key import session_hash
from mlxceld.prompt_cache.match import Query
from mlxceld.prompt_cache.reports import VerifyCheck, VerifyReport
from mlxceld.prompt_cache.trace_feed import FEED_EVENTS
from mlxceld.telemetry.status import EngineState
from mlxctl.commands import trace as trace_commands
from mlxctl.context import Ctl
from mlxctl.main import run
from mlxctl.output import Output


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


class Shell:
    """Runs mlxctl against the live API and takes what it prints."""

    def __init__(
        self,
        engine: CacheEngine,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        capsys: pytest.CaptureFixture[str],
    ):
        self.engine = engine
        self.path = path
        self.loop = loop
        self._capsys = capsys

    def __call__(self, *arguments: str, sleep: Callable[[float], None] | None = None) -> Result:
        ctl = Ctl(options={"socket": self.path})
        if sleep is not None:
            ctl.sleep = sleep
        code = run(arguments, ctl)
        captured = self._capsys.readouterr()
        return Result(int(code), captured.out, captured.err)


@pytest.fixture(scope="module")
def live() -> Iterator[LiveAdmin]:
    with tempfile.TemporaryDirectory(prefix="mx") as folder:
        path = Path(folder) / "admin.sock"
        with LiveAdmin(CacheEngine(), resolved_settings(max_queue=7), path) as admin:
            yield admin


@pytest.fixture
def ctl(live: LiveAdmin, capsys: pytest.CaptureFixture[str]) -> Shell:
    live.engine.__init__()  # a fresh engine behind the same server
    return Shell(live.engine, live.path, live.loop, capsys)


def interrupt_after(count: int, between: Callable[[int], None] = lambda n: None):
    """A sleep that passes no time, and is Ctrl-C the ``count``-th time."""
    calls = [0]

    def sleep(_: float) -> None:
        calls[0] += 1
        if calls[0] >= count:
            raise KeyboardInterrupt
        between(calls[0])

    return sleep


def test_status(ctl):
    ctl.engine.requests["r"] = request_status("r")
    shown = ctl("status")
    assert shown.code == 0
    assert shown.err == ""
    rows = dict(line.split(None, 1) for line in shown.out.splitlines())
    assert rows["state"] == "ready"
    assert rows["model"] == "tiny (llama, float32)"
    assert rows["running"] == "1 of 8"
    assert rows["waiting"] == "0 of 7"
    joined = rows["chat"]
    assert joined == "template  join_leading_system: system messages at the beginning are joined"
    assert rows["merge_users:"] == "turns of the user in a row are one"
    assert ctl("status", "-o", "json").json["model"]["id"] == "tiny"
    assert yaml.safe_load(ctl("-o", "yaml", "status").out)["running"] == 1


def test_status_tells_a_fault(ctl):
    ctl.engine.base = CacheEngine(state=EngineState.FAILED).base
    object.__setattr__(ctl.engine.base, "fault", "no memory")
    assert "no memory (0 since the start)" in ctl("status").out


def test_requests_are_listed_and_cancelled(ctl):
    ctl.engine.requests["r1"] = request_status("r1", 1, note="row by row")
    ctl.engine.requests["a/b c"] = request_status("a/b c", 2, client=None)
    header, first, second = ctl("requests", "list").out.splitlines()
    assert header.split()[:4] == ["ID", "PHASE", "PROMPT", "CACHED"]
    assert first.split()[:4] == ["r1", "decode", "1,500", "1,400"]
    assert first.endswith("row by row")
    assert "a/b c" in second
    assert [r["id"] for r in ctl("requests", "list", "-ojson").json["requests"]] == ["r1", "a/b c"]
    assert ctl("requests", "cancel", "a/b c", "-o", "json").json["cancelled"] is True
    gone = ctl("requests", "cancel", "a/b c")
    assert (gone.code, gone.out) == (1, "")
    assert "no request 'a/b c' is in flight" in gone.err


def test_cache_stats_as_a_table_and_as_the_apis_own_numbers(ctl):
    ctl.engine.put([1, 2, 3], nbytes=6000)
    ctl.engine.put([9], nbytes=1)
    store = ctl.engine.store
    store.take(store.match(Query.of(BUCKET, "s", [4, 5], 1)))
    shown = ctl("cache", "stats").out
    assert "[############........] 60.0%  5.9 KiB of 9.8 KiB" in shown
    assert "0 of 1 lookups (0.0%)" in shown
    assert "prefix_too_short  1" in shown
    assert not any(line != line.rstrip() for line in shown.splitlines())
    stats = ctl.engine.status.cache.as_dict()
    answer = ctl("cache", "stats", "-o", "json").json
    assert {name: answer[name] for name in stats} == stats


def test_watching_prints_one_object_a_line_until_ctrl_c(ctl):
    def grow(number: int) -> None:
        ctl.engine.put([number, 0])

    seen = ctl("cache", "stats", "--watch", "-o", "json", sleep=interrupt_after(3, grow))
    assert seen.code == 130
    assert [json.loads(line)["entries"] for line in seen.out.splitlines()] == [0, 1, 2]


def test_watching_waits_as_told_and_ends_with_the_daemons_absence(ctl):
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt

    seen = ctl("cache", "stats", "--watch", "1.5s", sleep=sleep)
    assert waits == [1.5, 1.5]
    assert seen.out.count("KV store") == 2
    assert ctl("cache", "stats", "--watch", "0").code == 2
    assert ctl("cache", "stats", "--watch", "--socket", "/nowhere/a.sock").code == 3


def test_entries_are_listed_without_their_text(ctl):
    ctl.engine.put([1, 2, 3], session="alice", nbytes=2048)
    ctl.engine.put([4, 5], session="bob", nbytes=1024)
    shown = ctl("cache", "entries", "--session", "alice")
    assert shown.code == 0
    heading, row = shown.out.splitlines()
    assert "SHARED/OWN" in heading
    assert session_hash("alice") in row
    assert "2.0 KiB" in row
    assert "alice" not in row
    newest = ctl("cache", "entries", "--store", "kv", "--limit", "1", "-o", "json").json
    (entry,) = newest["entries"]
    assert (entry["state_bytes"], entry["blocks"]) == (1024, None)
    assert "1 more" in ctl("cache", "entries", "--limit", "1").err
    assert ctl("cache", "entries", "--session", "").code == 2


def test_resize_shows_before_after_and_what_went_and_says_that_it_is_not_kept(ctl):
    for token in range(4):
        ctl.engine.put([token, 0], nbytes=2000)
    dry = ctl("cache", "resize", "--capacity", "4KiB", "--dry-run")
    assert dry.code == 0
    assert len(ctl.engine.store) == 4
    assert "dry run" in dry.err
    done = ctl("cache", "resize", "--capacity", "4KiB", "--ttl", "90s")
    assert len(ctl.engine.store) == 2
    rows = {line.split("  ")[0]: line.split() for line in done.out.splitlines()}
    assert rows["capacity_bytes"][1:] == ["9.8", "KiB", "4.0", "KiB"]
    assert rows["ttl_seconds"][1:] == ["1", "h", "0", "m", "1", "m", "30", "s"]
    assert rows["evicted entries"][-1] == "2"
    assert "until the daemon restarts" in done.err


def test_resize_sends_only_what_was_given(ctl):
    answer = ctl("cache", "resize", "--snapshot-max-entries", "0", "-o", "json").json
    changed = {k for k in answer["before"] if answer["before"][k] != answer["after"][k]}
    assert changed == {"snapshot_max_entries"}
    assert answer["after"]["snapshot_max_entries"] == 0


def test_resize_takes_the_words_for_none(ctl):
    after = ctl("cache", "resize", "--max-entries", "off", "--ttl", "never", "-ojson").json["after"]
    assert (after["max_entries"], after["ttl_seconds"]) == (0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--capacity", "8gbb"],
        ["--capacity", "-1"],
        ["--ttl", "soon"],
        ["--max-entries", "-1"],
        ["--max-entries", "many"],
    ],
)
def test_a_bad_resize_is_a_usage_error_that_changes_nothing(ctl, arguments):
    assert ctl("cache", "resize", *arguments).code == 2
    assert ctl.engine.orders == []


def test_flush_by_session_hash_needs_a_yes_and_frees(ctl):
    ctl.engine.put([1, 2], session="alice", nbytes=3)
    ctl.engine.put([3, 4], session="bob", nbytes=5)
    refused = ctl("cache", "flush", "--session", "alice")
    assert (refused.code, refused.out) == (2, "")
    assert "--yes" in refused.err
    assert len(ctl.engine.store) == 2
    dry = ctl("cache", "flush", "--dry-run", "-o", "json").json
    assert (dry["entries"], dry["bytes"]) == (2, 8)
    hashed = session_hash("alice")
    done = ctl("cache", "flush", "--session", hashed, "--yes", "-o", "json").json
    assert (done["entries"], done["bytes"], done["deferred_bytes"]) == (1, 3, 0)
    assert ctl("cache", "flush", "--session", "", "--yes").code == 2
    assert ctl("cache", "flush", "--store", "disk", "--yes").code == 2


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 1), ("", 1, 1)])
def test_flush_asks_on_a_terminal(ctl, monkeypatch, answer, code, left):
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(answer))
    ctl.engine.put([1, 2])
    shown = ctl("cache", "flush")
    assert (shown.code, len(ctl.engine.store)) == (code, left)
    assert "Drop everything cached? [y/N]" in shown.out + shown.err


def test_the_trace_is_switched_and_told(ctl):
    assert ctl("trace", "status").out.split() == ["trace", "off"]
    assert ctl("trace", "on", "-o", "json").json == {"enabled": True}
    assert ctl.engine.trace.enabled
    assert ctl("trace", "status", "-o", "yaml").out == "enabled: true\n"
    assert ctl("trace", "off").code == 0
    assert not ctl.engine.trace.enabled


def test_the_tail_ends_or_follows(ctl):
    for token in range(5):
        ctl.engine.put([token, 0], nbytes=token)
    lines = ctl("trace", "tail", "-n", "2", "--no-follow").out.splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        f"apc_event=store session={session_hash('s')} context_len=2 bytes={n} store=kv"
        for n in (3, 4)
    ]


def test_the_tail_follows_while_the_trace_is_on(ctl, monkeypatch):
    """What is shown is what happened while the trace was on, and of the rest the last N."""
    for token in range(3):
        ctl.engine.put([token, 0])
    shown: list[int] = []
    show = trace_commands._print

    def script(ctl_: Ctl, event: dict) -> None:
        show(ctl_, event)
        shown.append(event["context_len"])
        if len(shown) == 2:  # both of the backlog
            ctl.engine.put([1] * 10)  # off: kept, and not followed
            ctl.engine.set_trace(True)
            ctl.engine.put([1] * 11)
        elif len(shown) == 3:
            ctl.engine.put([1] * 12)
            ctl.engine.set_trace(False)
            ctl.engine.put([1] * 13)
            ctl.engine.set_trace(True)
            ctl.engine.put([1] * 14)
        elif len(shown) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(trace_commands, "_print", script)
    seen = ctl("trace", "tail", "-n2", "-ojson")
    assert seen.code == 130
    assert shown == [2, 2, 11, 12, 14]
    assert [json.loads(line)["context_len"] for line in seen.out.splitlines()] == shown
    assert "the trace is off" in seen.err
    assert "the trace is on" in seen.err
    assert not ctl.engine.trace._feeds or ctl.engine.trace.dropped == 0


def test_the_tail_tells_what_it_has_missed(ctl, monkeypatch):
    ctl.engine.put([1, 2])
    ctl.engine.set_trace(True)

    def flood(ctl_: Ctl, event: dict) -> None:
        # One batch, faster than any reader: the engine's thread does not wait in between.
        async def emit() -> None:
            for _ in range(FEED_EVENTS + 5):
                ctl.engine.trace.emit("store", context_len=9)

        if event["context_len"] == 2:
            asyncio.run_coroutine_threadsafe(emit(), ctl.loop).result()

    monkeypatch.setattr(trace_commands, "_print", flood)
    message = Output.message

    def until_missed(output: Output, text: str) -> None:
        message(output, text)
        if "missing" in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(Output, "message", until_missed)
    seen = ctl("trace", "tail")
    assert "5 events came too fast and are missing" in seen.err
    assert ctl.engine.trace.dropped == 5


def test_config_show_gives_values_with_sources(ctl):
    rows = {line.split()[0]: line.split()[1:] for line in ctl("config", "show").out.splitlines()}
    assert rows["max_queue"] == ["7", "flag"]
    assert rows["host"] == ["127.0.0.1", "default"]
    answer = ctl("config", "show", "-o", "json").json
    assert answer["settings"]["max_queue"] == {"value": 7, "source": "flag"}


def test_drain(ctl):
    shown = ctl("drain")
    assert shown.code == 0
    assert ctl.engine.drained
    assert shown.out.split()[:2] == ["draining", "yes"]


def test_a_change_is_on_record_under_the_callers_uid(ctl, caplog):
    caplog.set_level("INFO", logger="mlxceld.audit")
    ctl("trace", "on")
    (record,) = [r for r in caplog.records if r.name == "mlxceld.audit"]
    assert record.fields["actor"] == f"uid:{os.getuid()}"
    assert (record.fields["action"], record.fields["outcome"]) == ("trace.set", "ok")


def test_the_nearest_option_wins(ctl):
    assert ctl("-o", "yaml", "trace", "-o", "table", "status", "-o", "json").json == {
        "enabled": False
    }


def test_the_environment_is_read_and_a_flag_beats_it(ctl, monkeypatch):
    monkeypatch.setenv("MLXCTL_OUTPUT", "json")
    assert ctl("trace", "status").json == {"enabled": False}
    assert ctl("trace", "status", "-o", "yaml").out == "enabled: false\n"
    monkeypatch.setenv("MLXCTL_OUTPUT", "xml")
    assert ctl("trace", "status").code == 2
    monkeypatch.setenv("MLXCTL_OUTPUT", "table")
    monkeypatch.setenv("MLXCTL_SOCKET", "/nowhere/a.sock")
    assert ctl("trace", "status").code == 3
    assert ctl("trace", "status", "--socket", str(ctl.path)).code == 0


def test_usage_errors_are_json_when_json_is_wanted(ctl, monkeypatch):
    for arguments in (
        ["-o", "json", "cache", "resize", "--capacity", "x"],
        ["cache", "resize", "--capacity", "x", "--output=json"],
        ["bogus", "-ojson"],
    ):
        refused = ctl(*arguments)
        assert (refused.code, refused.out) == (2, "")
        assert json.loads(refused.err)["error"]["code"] == "usage"
    assert "Usage:" in ctl("bogus").err


def test_no_colour_off_a_terminal_whatever_is_asked(ctl, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in ctl("cache", "stats").out


def test_a_resize_of_an_old_generation_says_what_to_give(ctl):
    assert ctl("cache", "resize", "--max-entries", "9", "--generation", "0").code == 0
    refused = ctl("cache", "resize", "--max-entries", "8", "--generation", "0")
    assert refused.code == 5
    assert "--generation 1" in refused.err
    assert ctl.engine.store.budget.max_entries == 9


def test_verify_tells_each_check_and_fails_with_one(ctl, monkeypatch):
    assert "adopt == cold" in ctl("cache", "verify").out
    bad = Future()
    bad.set_result(VerifyReport((VerifyCheck("live", "windowed", False, "token 9"),)))
    monkeypatch.setattr(ctl.engine, "verify", lambda: bad, raising=False)
    result = ctl("cache", "verify")
    assert result.code == 1
    assert "FAILED" in result.out


def test_unpin_of_nothing_says_where_digests_are(ctl):
    result = ctl("cache", "unpin", "0123456789abcdef")
    assert result.code == 1
    assert "mlxctl cache entries" in result.err
    assert ctl("cache", "unpin", "").code == 2


@pytest.mark.parametrize("text", ["", " "])
def test_a_file_without_a_prompt_is_a_usage_error(ctl, tmp_path, text):
    (tmp_path / "p").write_text(text)
    result = ctl("cache", "warm", str(tmp_path / "p"))
    assert result.code == 2
    assert "is empty" in result.err


def test_reload_tells_what_became_of_each_setting(ctl, live):
    assert "Nothing has changed" in ctl("config", "reload").err
    step = {"before": "info", "after": "debug"}
    live.reloaded = ReloadReport({"log.level": step}, {"port": {"before": "1", "after": "2"}})
    try:
        shown = ctl("config", "reload")
        assert shown.code == 0
        assert "needs a restart" in shown.out
        live.reloaded = ReloadReport(refused={"prompt_cache.ttl": "no engine"})
        assert ctl("config", "reload").code == 1
        live.reload_problems = ["f.yaml:1:1 port: bad"]
        refused = ctl("config", "reload", "-o", "json")
        assert refused.code == 1
        assert json.loads(refused.err)["error"]["details"]["problems"] == live.reload_problems
    finally:
        live.reloaded, live.reload_problems = ReloadReport(), []


def test_config_check_needs_no_daemon_and_names_everything(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "f.yaml"
    file.write_text("port: 9000\n")
    nowhere = Ctl(options={"socket": tmp_path / "none"})
    assert run(["config", "check", "--config", str(file), "-o", "json"], nowhere) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["port"] == {"value": "9000", "source": "file"}
    file.write_text("port: high\nmax_quue: 3\n")
    assert run(["config", "check", "--config", str(file)], Ctl()) == 1
    err = capsys.readouterr().err
    assert f"{file}:1:" in err
    assert f"{file}:2:" in err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_each_shell(capsys, shell):
    assert run(["completion", shell], Ctl()) == 0
    assert "_MLXCTL_COMPLETE" in capsys.readouterr().out


def test_another_version_of_the_daemon_is_told_once(ctl, monkeypatch):
    monkeypatch.setattr("mlxceld.__version__", "9.9")
    result = ctl("cache", "stats", "--watch", "-o", "json", sleep=interrupt_after(2))
    assert result.err.count("this is version 9.9") == 1
    monkeypatch.undo()
    assert ctl("status").err == ""


def test_the_doctor_finds_a_daemon_that_is_well(ctl, monkeypatch):
    findings = {one["check"]: one for one in ctl("doctor", "-o", "json").json["findings"]}
    assert findings["daemon"]["level"] == "ok"
    assert findings["clients"]["level"] == "wrong"  # the harness serves no public API
    assert findings["device"]["text"] == "cpu"
