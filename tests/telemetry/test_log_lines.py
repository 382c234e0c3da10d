import io
import json
import logging
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp.http_exceptions import TransferEncodingError
from aiohttp.web import RequestPayloadError

from mlxceld.telemetry import logging as log_setup
from mlxceld.telemetry.audit import AuditLog


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = (root.level, list(root.handlers), logging.getLogger("mlxceld").level)
    yield io.StringIO()
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    logging.getLogger("mlxceld").setLevel(before[2])
    logging.captureWarnings(False)


def record(message: str, *, level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("mlxceld.x", level, "", 0, message, (), None)
    if fields:
        made.fields = fields
    return made


def test_json_line_has_its_fields_as_keys(stream: io.StringIO) -> None:
    log_setup.configure("info", "auto", stream=stream, environ={})
    logging.getLogger("mlxceld.request").info(
        "request", extra={"fields": {"id": "r1", "tokens": 3, "nothing": None, "time": "forged"}}
    )
    line = json.loads(stream.getvalue())
    assert line["level"] == "info"
    assert line["logger"] == "mlxceld.request"
    assert (line["message"], line["id"], line["tokens"]) == ("request", "r1", 3)
    assert line["nothing"] is None
    assert line["time"].endswith("Z")
    assert line["time_"] == "forged"


def test_json_holds_what_json_has_no_words_for() -> None:
    text = log_setup.JsonFormatter().format(
        record("odd", a=math.nan, b=[math.inf, 1], c=Path("/x"), d={1: "one"})
    )
    line = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert line["a"] == "nan"
    assert line["b"] == ["inf", 1]
    assert line["c"] == "/x"
    assert line["d"] == {"1": "one"}


def test_console_line_is_logfmt() -> None:
    text = log_setup.ConsoleFormatter().format(
        record("done", id="r1", note='two "words"', share=0.25, ok=True, gone=None, empty="")
    )
    assert text.endswith('mlxceld.x: done id=r1 note="two \\"words\\"" share=0.25 ok=true empty=""')
    assert " INFO " in text


def test_a_value_cannot_forge_a_line_or_drive_the_terminal() -> None:
    formatter = log_setup.ConsoleFormatter()
    text = formatter.format(record("from \x1b[2Jclient", user="a\nERROR b\x9b\u2028c"))
    assert "\n" not in text
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "\u2028" not in text
    lines = formatter.format(record("first\nERROR forged")).split("\n")
    assert lines[1].startswith("    ")


def test_journal_lines_carry_a_priority_each() -> None:
    formatter = log_setup.JournalFormatter()
    assert formatter.format(record("a", level=logging.WARNING)) == "<4>mlxceld.x: a"
    assert formatter.format(record("a", level=logging.DEBUG)).startswith("<7>")
    lines = formatter.format(record("a\nb", level=logging.ERROR)).split("\n")
    assert [line[:3] for line in lines] == ["<3>", "<3>"]


def test_auto_knows_the_journal_by_its_inode(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as journal:
        status = os.fstat(journal.fileno())
        right = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        inherited = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"}
        assert type(log_setup.formatter_for("auto", journal, right)) is log_setup.JournalFormatter
        assert type(log_setup.formatter_for("auto", journal, inherited)) is log_setup.JsonFormatter
        assert (
            type(log_setup.formatter_for("console", journal, right)) is log_setup.ConsoleFormatter
        )


def test_auto_is_console_on_a_terminal() -> None:
    leader, follower = os.openpty()
    with os.fdopen(leader, "rb"), os.fdopen(follower, "w") as terminal:
        assert type(log_setup.formatter_for("auto", terminal, {})) is log_setup.ConsoleFormatter


def test_level_changes_while_running(stream: io.StringIO) -> None:
    log_setup.configure("warning", "json", stream=stream)
    log = logging.getLogger("mlxceld.engine")
    log.info("before")
    assert log_setup.set_level("info") == "warning"
    log.info("after")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["after"]


def test_level_does_not_silence_the_audit_trail_nor_open_libraries(stream: io.StringIO) -> None:
    log_setup.configure("error", "json", stream=stream)
    AuditLog().record("uid:501", "cache.flush", "cache", {"entries": 2}, None, "ok", "r1", 0.01)
    log_setup.set_level("debug")
    logging.getLogger("aiohttp.access").info("chatter")
    line = json.loads(stream.getvalue())
    assert line["logger"] == "mlxceld.audit"
    assert line["message"] == "cache.flush of cache by uid:501: ok"
    assert line["before"] == {"entries": 2}
    assert line["duration_seconds"] == 0.01
    assert line["request_id"] == "r1"


def test_configuring_again_replaces_the_handler(stream: io.StringIO) -> None:
    log_setup.configure("info", "json", stream=stream)
    log_setup.configure("info", "json", stream=stream)
    logging.getLogger("mlxceld").info("once")
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    ("level", "name", "culprit"), [("loud", "json", "loud"), ("info", "xml", "xml")]
)
def test_unknown_names_change_nothing(
    stream: io.StringIO, level: str, name: str, culprit: str
) -> None:
    log_setup.configure("info", "json", stream=stream)
    with pytest.raises(ValueError, match=f"{culprit}.*expected one of"):
        log_setup.configure(level, name, stream=stream)
    logging.getLogger("mlxceld").info("still here")
    assert json.loads(stream.getvalue())["message"] == "still here"


def test_exceptions_are_shown() -> None:
    try:
        raise KeyError("what")
    except KeyError:
        made = logging.LogRecord("mlxceld", logging.ERROR, "", 0, "broke", (), sys.exc_info())
    assert "KeyError: 'what'" in json.loads(log_setup.JsonFormatter().format(made))["exception"]
    assert "\n    KeyError: 'what'" in log_setup.ConsoleFormatter().format(made)


@pytest.mark.parametrize("calls", [1, 2])
def test_a_client_that_speaks_no_http_leaves_one_line(stream: io.StringIO, calls: int) -> None:
    for _ in range(calls):
        log_setup.configure("info", "json", stream=stream)
    server = logging.getLogger("aiohttp.server")
    server.error(
        "Error handling request from %s",
        "127.0.0.1",
        exc_info=TransferEncodingError("Invalid character in chunk size:\n\n  b'zz'"),
    )
    server.error(
        "Unhandled exception",
        exc_info=RequestPayloadError("400, message:\n  Can not decode content-encoding: gzip"),
    )
    server.error("Unhandled exception", exc_info=ValueError("ours"))
    nonsense, undecodable, ours = (json.loads(line) for line in stream.getvalue().splitlines())
    assert nonsense["level"] == "warning"
    assert nonsense["message"] == (
        "Error handling request from 127.0.0.1: Invalid character in chunk size"
    )
    assert undecodable["level"] == "warning"
    assert undecodable["message"] == ("Unhandled exception: Can not decode content-encoding: gzip")
    assert "Traceback" not in json.dumps([nonsense, undecodable])
    assert ours["level"] == "error"
    assert "ValueError: ours" in json.dumps(ours)
