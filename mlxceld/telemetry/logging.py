"""Log lines: for people on a terminal, for machines elsewhere, with priorities for journald.

Code logs through the standard library. A record may carry ``extra={"fields": {...}}``: the
formatters print these as logfmt behind the message, or as keys of the JSON object.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from mlxceld.config.table import LOG_FORMATS, LOG_LEVELS
from mlxceld.telemetry.log_rotation import RotatingWrite, own_log_file
from mlxceld.telemetry.log_writer import LineWriter, Write, write_to

REQUEST_LOGGER = "mlxceld.request"
"""The logger of the one line that each finished request leaves."""

AUDIT_LOGGER = "mlxceld.audit"
"""The logger of the line that each administrative change leaves; never silenced by the level."""

_BARE = re.compile(r"[^\s\"=\\\x00-\x1f\x7f]+")
# Characters that would let a logged value forge lines or drive a terminal.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
_TEXT_CONTROLS = {code: text for code, text in _CONTROLS.items() if code not in (0x09, 0x0A)}
# syslog(3) priorities: err, warning, info, debug.
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.NOTSET, 7))
_OUR_HANDLER = "mlxceld"
_FLUSH_SECONDS = 2.0
_SERVER_LOGGER = "aiohttp.server"


def logfmt(fields: Mapping[str, object]) -> str:
    """``key=value`` pairs; a value with spaces, quotes or controls is quoted, None is left out."""
    return " ".join(
        f"{key}={_logfmt_value(value)}" for key, value in fields.items() if value is not None
    )


def _logfmt_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else _as_json(value)
    if _BARE.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=False).translate(_CONTROLS)


def _as_json(value: object) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, default=str, separators=(",", ":"))


def _finite(value: object) -> object:
    """The value without NaN and infinities, which JSON has no words for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def _when(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


class ConsoleFormatter(logging.Formatter):
    """``time LEVEL logger: message key=value``; further lines of a message are indented."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as text for people."""
        when = _when(record).astimezone().strftime("%H:%M:%S.%f")[:-3]
        return f"{when} {record.levelname:<7} {self.body(record)}"

    def body(self, record: logging.LogRecord) -> str:
        """The record without its time and level."""
        text = f"{record.name}: {record.getMessage()}".translate(_TEXT_CONTROLS)
        fields = logfmt(_fields(record))
        if fields:
            text = f"{text} {fields}"
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info).translate(_TEXT_CONTROLS)}"
        if record.stack_info:
            text = f"{text}\n{record.stack_info.translate(_TEXT_CONTROLS)}"
        return text.replace("\n", "\n    ")


class JournalFormatter(ConsoleFormatter):
    """Lines for journald: a ``<priority>`` in front of each, no time since the journal has one."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as one or more prefixed lines."""
        priority = next(number for level, number in _PRIORITIES if record.levelno >= level)
        # The journal takes each line for a message of its own, so each needs the priority.
        return "\n".join(f"<{priority}>{line}" for line in self.body(record).split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as JSON."""
        line: dict[str, object] = {
            "time": _when(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _fields(record).items():
            # A field must not pass itself off as the line's own time or level.
            line[f"{key}_" if key in line else key] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return _as_json(line)


def formatter_for(
    format_name: str, stream: TextIO, environ: Mapping[str, str] | None = None
) -> logging.Formatter:
    """The formatter that a ``log.format`` means for a stream.

    ``auto`` is priorities under journald, console lines on a terminal and JSON everywhere else.
    Raises ValueError for any other name.
    """
    if format_name == "console":
        return ConsoleFormatter()
    if format_name == "json":
        return JsonFormatter()
    if format_name != "auto":
        raise ValueError(f"log.format {format_name!r}: expected one of {', '.join(LOG_FORMATS)}")
    if _is_journal(stream, os.environ if environ is None else environ):
        return JournalFormatter()
    return ConsoleFormatter() if stream.isatty() else JsonFormatter()


def _is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether systemd connected this very stream to the journal: it names its device and inode.

    The variable alone is no proof, since a child whose output goes elsewhere inherits it.
    """
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    if not device or not inode:
        return False
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (str(status.st_dev), str(status.st_ino)) == (device, inode)


_BODY_ERRORS = frozenset({"aiohttp.web_protocol.RequestPayloadError"})
"""Bodies that end too soon or are not encoded as they say."""


class _NotHttp(logging.Filter):
    """Makes one line of a client that does not speak HTTP: it is no fault of the daemon's."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        name = f"{type(error).__module__}.{type(error).__name__}"
        if name.startswith("aiohttp.http_exceptions.") or name in _BODY_ERRORS:
            text = str(getattr(error, "message", error)).removeprefix("400, message:")
            reason = text.strip().partition("\n")[0]
            record.msg = f"{record.getMessage()}: {reason.rstrip(':')}"
            record.args = record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


class WriterHandler(logging.Handler):
    """Hands formatted lines to a :class:`LineWriter`: logging never waits for who reads the log."""

    def __init__(self, write: Write, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.writer = LineWriter(write, self._notice)
        self._patience = _FLUSH_SECONDS

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one record's line."""
        try:
            self.writer.put(self.format(record))
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait until the lines are written, for a while; if that is in vain, not again."""
        if not self.writer.flush(self._patience):
            self._patience = 0.0

    def close(self) -> None:
        """Write what waits and end the thread."""
        self.writer.close(self._patience)
        super().close()

    def _notice(self, count: int) -> str:
        text = "%d log lines were dropped: they were not read fast enough"
        return self.format(
            logging.LogRecord("mlxceld.log", logging.WARNING, "", 0, text, (count,), None)
        )


def configure(
    level: str,
    format_name: str,
    *,
    stream: TextIO | None = None,
    environ: Mapping[str, str] | None = None,
    log_file: Path | None = None,
) -> None:
    """Send all logging to ``stream`` (standard error) in one format; may be called again.

    A stream with a descriptor is written on a thread of its own. It is rotated where it is the
    daemon's own file: ``log_file``, or what launchd opened. Raises ValueError for an unknown level
    or format, and then changes nothing.
    """
    target = sys.stderr if stream is None else stream
    environ = os.environ if environ is None else environ
    formatter = formatter_for(format_name, target, environ)
    number = _level_number(level)
    handler = _handler_for(target, formatter, environ, log_file)
    handler.name = _OUR_HANDLER
    root = logging.getLogger()
    for old in [each for each in root.handlers if each.name == _OUR_HANDLER]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    server = logging.getLogger(_SERVER_LOGGER)
    if not any(isinstance(each, _NotHttp) for each in server.filters):
        server.addFilter(_NotHttp())
    # Libraries speak only when something is wrong; their chatter is not this daemon's log.
    root.setLevel(logging.WARNING)
    logging.getLogger("mlxceld").setLevel(number)
    logging.getLogger(AUDIT_LOGGER).setLevel(logging.INFO)
    logging.captureWarnings(True)


def dropped_lines() -> int:
    """How many log lines were dropped because nobody read the log."""
    return sum(
        handler.writer.dropped
        for handler in logging.getLogger().handlers
        if isinstance(handler, WriterHandler)
    )


def flush() -> None:
    """Wait, a short while, until what was logged is written: before something else is printed."""
    for handler in logging.getLogger().handlers:
        if handler.name == _OUR_HANDLER:
            handler.flush()


def _handler_for(
    stream: TextIO, formatter: logging.Formatter, environ: Mapping[str, str], log_file: Path | None
) -> logging.Handler:
    try:
        fd = stream.fileno()
    except (OSError, ValueError, AttributeError):
        handler: logging.Handler = logging.StreamHandler(stream)
        handler.setFormatter(formatter)
        return handler
    own = None if log_file is None else own_log_file(fd, log_file, environ)
    return WriterHandler(write_to(fd) if own is None else RotatingWrite(fd, own), formatter)


def set_level(level: str) -> str:
    """Change the level of a running daemon and return the one before, as a setting's value."""
    logger = logging.getLogger("mlxceld")
    before = logging.getLevelName(logger.level).lower()
    logger.setLevel(_level_number(level))
    return before


def _level_number(level: str) -> int:
    if level not in LOG_LEVELS:
        raise ValueError(f"log.level {level!r}: expected one of {', '.join(LOG_LEVELS)}")
    return logging.getLevelNamesMapping()[level.upper()]
