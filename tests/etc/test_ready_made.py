"""The alerts, the dashboard and the list of metrics against the metrics that there are."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientError, ClientSession
from prometheus_client.parser import text_string_to_metric_families

from mlxceld.telemetry.metrics import Metrics
from mlxceld.telemetry.status import EngineStatus, ModelStatus
from stack_harness import Stack, open_stack
from tiny_models import TinyModels

ROOT = Path(__file__).parents[2]
RULES = ROOT / "etc" / "prometheus" / "mlxceld.rules.yml"
DASHBOARD = ROOT / "etc" / "grafana" / "mlxceld.json"
METRICS_MANUAL = ROOT / "docs" / "metrics.md"
PATIENCE_SECONDS = 60

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus here"
)

MODEL = ModelStatus("m", "m", "llama", "cpu", "float32", 128, 320, 1, 1, {}, "full", "", 1.0)


def _families() -> list[Any]:
    body, _ = Metrics(lambda: EngineStatus(model=MODEL)).render("")
    return list(text_string_to_metric_families(body.decode()))


def _samples() -> dict[str, list[dict[str, str]]]:
    """The labels of every series at the first scrape, by the sample's name."""
    found: dict[str, list[dict[str, str]]] = {"up": [{}]}
    for family in _families():
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def _rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def _panels() -> list[dict[str, Any]]:
    return [p for p in json.loads(DASHBOARD.read_text())["panels"] if p["type"] != "row"]


def _queries() -> Iterator[tuple[str, str]]:
    for rule in _rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in _panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


@pytest.mark.parametrize(("name", "expression"), list(_queries()), ids=lambda text: text[:40])
def test_queries_name_series_that_exist(name: str, expression: str) -> None:
    samples = _samples()
    recorded = {rule["record"] for rule in _rules() if "record" in rule}
    used = re.findall(r"\b((?:mlxcel_|process_|up\b)\w*)(?:\{([^}]*)\})?", expression)
    assert used or any(record in expression for record in recorded)
    for metric, matchers in used:
        assert metric in samples, metric
        for label, value in re.findall(r'(\w+)="([^"$]*)"', matchers):
            if label not in ("job", "instance"):
                known = {labels.get(label) for labels in samples[metric]}
                assert value in known, f"{metric} has no {label}={value!r}"
    # Nothing that only names a recording rule is left out.
    for record in re.findall(r"mlxcel:[\w:]+", expression):
        assert record in recorded


def test_the_dashboard_is_well_formed() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    assert dashboard["uid"] == dashboard["title"] == "mlxceld"
    places: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & places, f"{panel['title']} lies over another panel"
        places |= cells
    for panel in _panels():
        assert panel["description"]
        for target in panel["targets"]:
            assert 'instance=~"$instance"' in target["expr"]


def test_the_manual_lists_every_metric_with_its_type_and_labels_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", METRICS_MANUAL.read_text(), re.M)
    listed = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(listed) == len(rows)
    found = {}
    for family in _families():
        if not family.name.startswith("mlxcel_"):
            continue
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        kind = "gauge" if family.name.endswith("_info") else family.type
        name = f"{family.name}_total" if kind == "counter" else family.name
        found[name] = (kind, labels)
    assert listed == found


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", str(RULES)),
        ("check", "config", str(RULES.with_name("prometheus.yml"))),
        ("test", "rules", str(Path(__file__).with_name("mlxceld.rules.test.yml"))),
    ],
    ids=["rules", "config", "alerts"],
)
def test_promtool_is_content(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_has_no_complaint_about_the_metrics() -> None:
    body, _ = Metrics(lambda: EngineStatus(model=MODEL)).render("")
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=body, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class _Prometheus:
    """A real Prometheus on loopback that scrapes one daemon five times a second."""

    def __init__(self, folder: Path, target: str) -> None:
        self.url = f"http://127.0.0.1:{(port := _free_port())}"
        config = folder / "prometheus.yml"
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
                    "rule_files": [str(RULES)],
                    "scrape_configs": [
                        {"job_name": "mlxceld", "static_configs": [{"targets": [target]}]}
                    ],
                }
            )
        )
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    async def query(self, session: ClientSession, expression: str) -> list[float]:
        """The values of an instant query; none also while it is not up yet."""
        assert self._process.poll() is None, "prometheus has ended"
        try:
            async with session.get(
                f"{self.url}/api/v1/query", params={"query": expression}
            ) as response:
                answer = await response.json(content_type=None)
        except (ClientError, json.JSONDecodeError):
            return []
        if answer is None or answer.get("status") != "success":
            assert answer is None or response.status == 503, answer
            return []
        return [float(item["value"][1]) for item in answer["data"]["result"]]

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_SECONDS)
        self._log.close()


def _filled_in(expression: str) -> str:
    variables = {
        "$__rate_interval": "5s",
        "$__range": "1m",
        "$instance": ".+",
        "$job": "mlxceld",
    }
    for name, value in variables.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@needs_prometheus
async def test_every_panel_shows_data_of_a_live_daemon(
    tiny_models: TinyModels, tmp_path: Path
) -> None:
    async with open_stack(tiny_models.folder("llama"), tmp_path / "state") as stack:
        server = stack.public.server
        prometheus = _Prometheus(tmp_path, f"{server.host}:{server.port}")
        try:
            left = {
                f"{panel['title']} {target['refId']}": _filled_in(target["expr"])
                for panel in _panels()
                for target in panel["targets"]
            }
            assert len(left) > 50
            async with asyncio.timeout(PATIENCE_SECONDS), ClientSession() as session:
                while left:
                    # Something has to happen while it looks.
                    await _traffic(stack)
                    for name, expression in list(left.items()):
                        values = await prometheus.query(session, expression)
                        if any(not math.isnan(value) for value in values):
                            del left[name]
                alerts = await prometheus.query(session, 'ALERTS{alertstate="firing"}')
            assert alerts == []
        except TimeoutError:
            pytest.fail(f"no data for {left}")
        finally:
            prometheus.end()


async def _traffic(stack: Stack) -> None:
    for prompt in ("a b c d e f g h i j k l m n o p q r s t", "hello again and again and again"):
        await stack.complete(prompt)
