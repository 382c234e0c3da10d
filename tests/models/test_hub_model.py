from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tiny_models import TinyModels

COMMIT = "0123456789abcdef0123456789abcdef01234567"

RESOLVE = """
import sys
from pathlib import Path
from mlxceld.models.errors import ModelError
from mlxceld.models.locate import resolve_model
try:
    found = resolve_model(sys.argv[1], state_dir=Path("unused"), progress=print)
    print("FOUND", found.id, found.origin, found.path)
except ModelError as error:
    print("ERROR", error)
"""


class Hub:
    """A hub of one model on this machine: the few routes that a download asks for."""

    def __init__(self, folder: Path) -> None:
        self.files = {file.name: file.read_bytes() for file in folder.iterdir()}
        self.files["README.md"] = b"not needed"
        self.files["code.py"] = b"raise SystemExit"
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, handler: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = handler.path.split("?")[0]
        self.asked.append(path)
        headers, content, status = {"X-Repo-Commit": COMMIT}, b"", 200
        if path.startswith("/api/models/org/tiny/tree/"):
            content = json.dumps(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": etag(data)}
                    for name, data in self.files.items()
                ]
            ).encode()
        elif path.startswith("/api/models/org/tiny"):
            siblings = [{"rfilename": name} for name in self.files]
            content = json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": siblings}).encode()
        elif path.startswith(f"/org/tiny/resolve/{COMMIT}/"):
            content = self.files[path.rsplit("/", 1)[1]]
            headers["ETag"] = f'"{etag(content)}"'
        else:
            headers, status = {"X-Error-Code": "RepoNotFound"}, 404
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if body:
            handler.wfile.write(content)


def etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(tiny_model_folders: TinyModels) -> Iterator[Hub]:
    hub = Hub(tiny_model_folders.folder("llama"))
    thread = threading.Thread(target=hub.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield hub
    hub.server.shutdown()
    thread.join()
    hub.server.server_close()


def resolve(name: str, cache: Path, url: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE, name],
        env={
            **os.environ,
            "HF_ENDPOINT": url,
            "HF_HUB_CACHE": str(cache),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_model_is_downloaded_once_and_then_needs_no_hub(hub: Hub, tmp_path: Path) -> None:
    lines = resolve("org/tiny", tmp_path, hub.url)
    assert lines[0] == f"downloading org/tiny into {tmp_path}"
    assert lines[-2].startswith("downloading org/tiny: 100% (")
    found = lines[-1].split(" ", 3)
    assert found[:3] == ["FOUND", "org/tiny", "hub"]
    names = {file.name for file in Path(found[3]).iterdir()}
    assert names == set(hub.files) - {"README.md", "code.py"}
    asked = len(hub.asked)
    again = resolve("org/tiny", tmp_path, hub.url)
    assert again == [f"using the copy of org/tiny in {tmp_path}", lines[-1]]
    assert len(hub.asked) == asked


def test_an_incomplete_copy_is_completed(hub: Hub, tmp_path: Path) -> None:
    found = resolve("org/tiny", tmp_path, hub.url)[-1].split(" ", 3)
    weights = Path(found[3]) / "model.safetensors"
    weights.resolve().unlink()
    weights.unlink()
    assert resolve("org/tiny", tmp_path, hub.url)[-1] == " ".join(found)
    assert weights.stat().st_size == len(hub.files["model.safetensors"])


def test_a_model_that_the_hub_does_not_know(hub: Hub, tmp_path: Path) -> None:
    last = resolve("org/unknown", tmp_path, hub.url)[-1]
    assert last.startswith(f"ERROR model org/unknown: no whole copy in {tmp_path}, and the hub")
    assert "knows no such model" in last


def test_without_a_network_the_folder_looked_in_is_named(tmp_path: Path) -> None:
    unreachable = "http://127.0.0.1:9"
    last = resolve("org/tiny", tmp_path, unreachable)[-1]
    assert last.startswith(f"ERROR model org/tiny: no whole copy in {tmp_path}, and the hub cannot")
    offline = resolve("org/tiny", tmp_path, unreachable, HF_HUB_OFFLINE="1")[-1]
    assert "HF_HUB_OFFLINE forbids" in offline


def test_a_name_that_is_no_hub_id(tmp_path: Path) -> None:
    last = resolve("org/double..dot", tmp_path, "http://127.0.0.1:9")[-1]
    assert last.startswith("ERROR model org/double..dot: not a hub id")
