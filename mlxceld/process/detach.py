"""Starting the daemon in the background, where no service manager does it.

The starting process forks before MLX, asyncio or any thread exists, and waits at a pipe until the
daemon says that it is ready, or why it is not.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlxceld.config.folders import open_own, private_folder
from mlxceld.process.report import PATIENCE_SECONDS, PipeReport, StartReport

LOG_NAME = "mlxceld.log"

_END_SECONDS = 30.0
"""How long a daemon whose start has failed may take to end."""


@dataclass(frozen=True, slots=True)
class Started:
    """A daemon in the background that answers at ``address``."""

    pid: int
    address: str


class StartError(Exception):
    """The daemon did not become ready; the text says why, ``exit_code`` is what to exit with."""

    def __init__(self, text: str, exit_code: int = 1) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def start_detached(
    state_dir: Path,
    serve: Callable[[StartReport], int],
    *,
    progress: Callable[[str], None],
    patience: float = PATIENCE_SECONDS,
) -> Started:
    """Run ``serve`` in a daemon process and return when it reports to be ready.

    ``serve`` returns the daemon's exit code, and must import what starts threads by itself.
    ``progress`` is told its lines meanwhile; each renews the ``patience``, in seconds. The
    daemon's output goes to ``mlxceld.log`` in the state folder. Raises StartError; then no daemon
    is left. Raises FolderError or OSError if the state folder cannot be used.
    """
    private_folder(state_dir)
    log_file = state_dir / LOG_NAME
    log = open_own(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.fchmod(log, 0o600)
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_daemon(state_dir, log, writing, serve)
    os.close(log)
    os.close(writing)
    # The child forks again and ends at once, which leaves the daemon without a parent.
    os.waitpid(child, 0)
    try:
        return _Watch(reading, log_file, progress).until_ready(patience)
    finally:
        os.close(reading)


def _be_daemon(
    state_dir: Path, log_fd: int, writing: int, serve: Callable[[StartReport], int]
) -> None:
    """Become a daemon, serve and exit; never returns, so that the caller's code runs once."""
    code = 1
    try:
        import daemon

        with os.fdopen(log_fd, "ab", buffering=0) as log:
            context = daemon.DaemonContext(
                # Said outright: what is guessed otherwise differs by who started the shell.
                detach_process=True,
                umask=0o077,
                working_directory=str(state_dir),
                files_preserve=[writing, log],
                stdout=log,
                stderr=log,
                # A crash inside MLX should leave its trace.
                prevent_core=False,
                signal_map={},
            )
            context.open()
            report = PipeReport(writing)
            try:
                code = serve(report)
            except BaseException as error:
                traceback.print_exc()
                report.failed(f"the start failed: {type(error).__name__}: {error}", 1)
    finally:
        # What is logged is written on another thread, which os._exit would cut off.
        logging.shutdown()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class _Watch:
    """Reads what the daemon tells, line by line."""

    def __init__(self, fd: int, log_file: Path, progress: Callable[[str], None]) -> None:
        self._fd = fd
        self._log_file = log_file
        self._progress = progress
        self._pid: int | None = None
        self._pending = b""

    def until_ready(self, patience: float) -> Started:
        try:
            while True:
                message = self._next(patience)
                if "pid" in message:
                    self._pid = int(str(message["pid"]))
                elif "progress" in message:
                    self._progress(str(message["progress"]))
                elif "ready" in message and self._pid is not None:
                    return Started(self._pid, str(message["ready"]))
                elif "failed" in message:
                    # It still holds the state folder and the port for a moment; a second try
                    # right after this one must not stumble over it.
                    if not self._ended_within(_END_SECONDS):
                        self._end()
                    raise StartError(str(message["failed"]), int(str(message["exit_code"])))
        except (KeyboardInterrupt, TimeoutError) as error:
            self._end()
            if isinstance(error, KeyboardInterrupt):
                raise
            raise StartError(
                f"the daemon said nothing for {patience:g} s and was ended; see {self._log_file}"
            ) from None

    def _next(self, patience: float) -> dict[str, object]:
        while b"\n" not in self._pending:
            if not select.select([self._fd], [], [], patience)[0]:
                raise TimeoutError
            chunk = os.read(self._fd, 65536)
            if not chunk:
                raise StartError(f"the daemon ended before it was ready; see {self._log_file}")
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        message = json.loads(line)
        return message if isinstance(message, dict) else {}

    def _end(self) -> None:
        """End a daemon that nobody waits for any longer: it has promised nothing to anyone."""
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._ended_within(_END_SECONDS)

    def _ended_within(self, seconds: float) -> bool:
        """Wait until the daemon has ended, which closes its end of the pipe; False if it has not.

        What it still says does not count.
        """
        deadline = time.monotonic() + seconds
        while select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not os.read(self._fd, 65536):
                return True
        return False
