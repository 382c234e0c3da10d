"""mlxctl bench against real daemons and mlx_lm.server, on a tiny model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon_harness import PATIENCE_SECONDS, Served, clean_environ
from mlxctl.bench.names import SCENARIOS
from tiny_models import TinyModels

SMALL = (
    *(
        "--repeats",
        "1",
        "--prefix-tokens",
        "160",
        "--sharers",
        "3",
        "--turns",
        "3",
        "--tokens",
        "4",
    ),
    *("--prompts", "4", "--decode-tokens", "6", "--idle", "0.1s", "--settle", "0"),
)


def bench(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlxctl", "bench", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
        env=clean_environ(home),
        timeout=2 * PATIENCE_SECONDS,
    )


def figure(summary: dict[str, Any], scenario: str, server: str, name: str) -> float:
    (found,) = (one for one in summary["scenarios"] if one["name"] == scenario)
    return float(found["servers"][server]["figures"][name]["median"])


@pytest.fixture(scope="module")
def model(tiny_models: TinyModels) -> Path:
    return tiny_models.folder("llama", context_length=100_000)


@pytest.fixture
def live(model: Path, tmp_path: Path) -> Iterator[str]:
    state = ("--state-dir", str(tmp_path / "state"))
    daemon = Served(tmp_path, "--model", str(model), *state, "--prompt-cache-prefetch", "off")
    try:
        yield daemon.until_ready()
    finally:
        daemon.end()


def test_every_scenario_computes_what_is_distinct_and_no_more(live: str, model: Path, tmp_path):
    done = bench(
        *("run", "--url", f"live={live}", "--model", str(model), *SMALL),
        *("--out", str(tmp_path / "out"), "-o", "json"),
        home=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary == json.loads((tmp_path / "out" / "result.json").read_text())
    assert (summary["complete"], summary["failures"]) == (True, [])
    assert [one["name"] for one in summary["scenarios"]] == list(SCENARIOS)
    for name in SCENARIOS[1:]:
        assert figure(summary, name, "live", "computed_to_distinct") <= 1.02, name
    for name in ("shared_prefix_burst_cold", "shared_prefix_burst_warm", "seqshare", "churn"):
        computed = figure(summary, name, "live", "tokens_computed")
        assert computed == figure(summary, name, "live", "tokens_distinct"), name
    assert all(one["servers"]["live"]["rendered_otherwise"] == 0 for one in summary["scenarios"])
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        *("record.jsonl", "result.json", "result.md"),
        *("ttft.png", "ttft.svg"),  # the memory of a server that runs already is not looked at
    }
    assert f"[{len(SCENARIOS)}/{len(SCENARIOS)}]" in done.stderr


def test_ours_beside_mlx_lms_server_and_what_it_costs(model: Path, tmp_path: Path):
    out = ("--out", str(tmp_path / "out"), "--no-plot", "-o", "json")
    arguments = ("compare", "--model", str(model), *SMALL, "--scenario", "agent_loop", *out)
    done = bench(*arguments, "--scenario", "shared_prefix_burst_cold", home=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    burst, agent = "shared_prefix_burst_cold", "agent_loop"
    assert [one["name"] for one in summary["scenarios"]] == [burst, agent]
    assert figure(summary, burst, "mlxceld", "computed_to_distinct") == 1.0
    assert figure(summary, agent, "mlxceld", "computed_to_distinct") <= 1.02
    prompts = {figure(summary, burst, one, "prompt_tokens") for one in ("mlxceld", "mlx_lm.server")}
    assert len(prompts) == 1
    for one in summary["scenarios"]:
        assert {server["rendered_otherwise"] for server in one["servers"].values()} == {0}
        assert one["answers"]["mlx_lm.server"]["compared"] == 3
        assert {"ttft_p50", "wall", "memory_peak"} <= set(one["ratios"]["mlx_lm.server"])
    assert figure(summary, burst, "mlxceld", "memory_before") > 0
    assert figure(summary, burst, "mlxceld", "mlx_peak") > 0
    again = bench(*arguments, "--scenario", burst, "--resume", home=tmp_path)
    assert again.stderr.count("recorded before") == 4
    assert json.loads(again.stdout) == summary
    other = bench(*arguments, "--scenario", burst, "--resume", "--seed", "2", home=tmp_path)
    assert other.returncode == 2
    assert "seed is 1 there and 2 here" in other.stderr


def test_answers_that_may_not_end_have_all_their_tokens(model: Path, tmp_path: Path):
    ending = shutil.copytree(model, tmp_path / "model")
    config = json.loads((ending / "config.json").read_text())
    # A model of which nearly any token ends the answer.
    config["eos_token_id"] = list(range(250))
    (ending / "config.json").write_text(json.dumps(config))
    load = ("run", "--model", str(ending), *SMALL, "--scenario", "churn", "--no-plot")
    tokens = []
    for flags in ((), ("--ignore-eos",)):
        out = tmp_path / f"out{len(flags)}"
        done = bench(*load, *flags, "--out", str(out), home=tmp_path)
        assert done.returncode == 0, done.stderr
        summary = json.loads((out / "result.json").read_text())
        tokens.append(figure(summary, "churn", "mlxceld", "completion_tokens"))
    assert tokens[0] < tokens[1] == 4 * 4


def test_ignore_eos_needs_to_know_the_model(tmp_path: Path):
    done = bench("run", "--url", "live=http://127.0.0.1:9", "--ignore-eos", home=tmp_path)
    assert done.returncode == 2
    assert "--ignore-eos needs the model's folder" in done.stderr


def test_a_server_that_fails_is_reported_and_the_other_runs_go_on(model: Path, tmp_path: Path):
    done = bench(
        *("compare", "--model", str(model), *SMALL, "--scenario", "decode_1", "--no-plot"),
        *("--config", "good=--no-apc", "--config", "bad=--no-such-flag", "--out", "out"),
        home=tmp_path,
    )
    assert done.returncode == 1
    assert "bad, decode_1, repeat 1: the server ended with code 2" in done.stdout
    assert "No such option" in done.stdout
    summary = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [one["server"] for one in summary["failures"]] == ["bad"]
    assert figure(summary, "decode_1", "good", "tokens_computed") > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_and_keeps_its_record(number, model, tmp_path):
    arguments = ("run", "--model", str(model), *SMALL, "--no-plot", "--out", "out")
    with subprocess.Popen(
        [sys.executable, "-m", "mlxctl", "bench", *arguments, "--repeats", "50"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=clean_environ(tmp_path),
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert "idle, mlxceld: done" in first
        # The next server is started; its process is the bench's child.
        me = psutil.Process(process.pid)
        while not (children := me.children(recursive=True)):
            assert process.poll() is None
        os.kill(process.pid, number)
        said = process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 130
    assert "--out out --resume goes on" in said
    _, alive = psutil.wait_procs(children, timeout=0)
    assert alive == []
    lines = (tmp_path / "out" / "record.jsonl").read_text().splitlines()
    assert [json.loads(line)["run"]["scenario"] for line in lines[1:]] == ["idle"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--config", "a=--no-apc", "--config", "b=--apc"), "run measures one server"),
        (("compare", "--config", "fast"), "value for --config: expected NAME=FLAGS"),
        (("compare", "--config", "mlxceld=--apc"), "two servers are called 'mlxceld'"),
        (("run", "--binary", "/nowhere"), "expected a program that can be run"),
        (("compare", "--peer", "ollama"), "expected mlx_lm.server, or NAME=COMMAND"),
        (("run", "--scenario", "burst"), "'burst' is not one of 'idle'"),
        (("run", "--repeats", "0"), "0 is not in the range"),
        (("run", "--prefix-tokens", "many"), "'many' is not a valid integer"),
        (("run", "--resume"), "give --out DIR"),
        (("run", "--idle", "long"), "expected a duration like 90s"),
    ],
)
def test_a_bad_flag_is_named_with_its_value(arguments, said, tmp_path):
    done = bench(*arguments, "--no-plot", home=tmp_path)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_a_model_that_is_not_there(tmp_path: Path):
    done = bench("run", "--model", "nowhere.gguf", "--no-plot", home=tmp_path)
    assert done.returncode == 1
    assert "model nowhere.gguf: no such file" in done.stderr
    assert list(tmp_path.glob("mlxctl-bench-*")) == []
