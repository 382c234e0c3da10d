"""``mlxctl cache explain``: what is sent for each way of giving a prompt, and what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlxctl.context import Ctl
from mlxctl.main import run

URL = "http://127.0.0.1:8485"

ANSWER: dict[str, Any] = {
    "outcome": "hit",
    "prompt_tokens": 131,
    "reused_tokens": 103,
    "reason": "mode_mismatch",
    "donation_reason": "oversized",
    "store": "kv",
    "kind": "blocks",
    "min_prefix": 32,
    "entry": {
        "kind": "blocks",
        "session": "0123456789ab",
        "same_session": False,
        "tokens": 137,
        "matched_tokens": 103,
        "age_seconds": 60.0,
        "idle_seconds": 14.2,
        "hits": 2,
        "client": None,
    },
    "divergence": {"token": 103, "before": "Today is ", "text": "Mon", "after": "day.\n"},
    "other_rendering": {"matched_tokens": 120, "differs": "tools_order"},
    "advice": [{"code": "changing_text", "text": "the prompt differs at token 103"}],
}


@pytest.fixture
def ask(requests_mock, capsys):
    post = requests_mock.post(f"{URL}/admin/v1/cache/explain", json=ANSWER)

    def go(*arguments: str) -> tuple[int, dict[str, Any] | None, str, str]:
        code = run(["cache", "explain", *arguments], Ctl(options={"url": URL}))
        captured = capsys.readouterr()
        sent = post.last_request.json() if post.called else None
        return int(code), sent, captured.out, captured.err

    return go


MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("option", "content", "sent"),
    [
        ("--messages", MESSAGES, {"messages": MESSAGES}),
        (
            "--messages",
            {"messages": MESSAGES, "tools": [{}], "model": "m", "stream": True, "user": "u"},
            {"messages": MESSAGES, "tools": [{}], "model": "m", "stream": True, "user": "u"},
        ),
        (
            "--file",
            {"prompt": "x", "user": "u", "prompt_cache_key": "k"},
            {"prompt": "x", "user": "u", "prompt_cache_key": "k"},
        ),
        ("--file", {"input": "hi"}, {"input": "hi"}),
        ("--file", {"other": 1}, {"prompt": '{"other": 1}'}),
    ],
)
def test_files(ask, tmp_path: Path, option: str, content: Any, sent: dict[str, Any]) -> None:
    path = tmp_path / "file"
    path.write_text(json.dumps(content))
    code, body, out, _ = ask(option, str(path), "-o", "json")
    assert (code, body, json.loads(out)) == (0, sent, ANSWER)


def test_the_session_and_the_api_of_a_body_can_be_told(ask, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(json.dumps({"messages": MESSAGES, "system": "s"}))
    _, body, *_ = ask("--file", str(path), "--session", "k", "--api", "messages")
    assert body == {"messages": MESSAGES, "system": "s", "session": "k", "api": "messages"}


def test_a_text_file_is_a_raw_prompt(ask, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("Once upon\na time")
    assert ask("--file", str(path), "--session", "s")[1] == {
        "prompt": "Once upon\na time",
        "session": "s",
    }


def test_the_table_says_all(ask) -> None:
    code, sent, out, _ = ask("--prompt", "Once")
    assert (code, sent) == (0, {"prompt": "Once"})
    rows = dict(line.split("  ", 1) for line in out.splitlines() if not line.startswith("- "))
    rows = {name: text.strip() for name, text in rows.items()}
    assert rows["reused"] == "103 of 131 prompt tokens (78.6%)"
    assert rows["declined"] == "mode_mismatch"
    assert rows["not stored"] == "oversized"
    assert rows["nearest entry"] == (
        "103 of its 137 tokens match; session 0123456789ab, 2 hits, idle 14.2 s"
    )
    assert rows["there"] == "'Today is ' >>> 'Mon' <<< 'day.\\n'"
    assert rows["other rendering"] == "120 tokens match (tools_order)"
    assert out.splitlines()[-1] == "- the prompt differs at token 103"


@pytest.mark.parametrize(
    "arguments", [(), ("--prompt", "x", "--messages", "-"), ("--messages", "/nowhere/file")]
)
def test_wrong_usage(ask, arguments: tuple[str, ...]) -> None:
    assert ask(*arguments)[:2] == (2, None)


def test_a_file_that_is_no_conversation_is_wrong_usage(ask, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("{not json")
    code, sent, _, err = ask("--messages", str(path))
    assert (code, sent) == (2, None)
    assert "expected a JSON list of messages" in err
