"""The checks of a loaded model: made once, and kept for the next start.

Three verdicts: how rows may be batched, how shared blocks may be read, and whether what is stored
goes on as if it had been computed. They depend on nothing but what the fingerprint covers, so what
was found once holds until that changes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from mlxceld.engine.fingerprint import fingerprint
from mlxceld.engine.probe import BatchVerdict, probe
from mlxceld.engine.shared_probe import SharingVerdict, probe_sharing
from mlxceld.engine.verdict_file import VerdictFile
from mlxceld.engine.verify import verify
from mlxceld.prompt_cache.reports import VerifyCheck, VerifyReport

if TYPE_CHECKING:
    from mlxceld.config import Settings
    from mlxceld.kv.slabs import LayerShape
    from mlxceld.models.loading import LoadedModel
    from mlxceld.models.progress import Progress

log = logging.getLogger(__name__)

T = TypeVar("T")

_TYPES: dict[str, Callable[..., Any]] = {
    "batch": BatchVerdict,
    "sharing": SharingVerdict,
    "reuse": lambda checks: VerifyReport(tuple(VerifyCheck(**check) for check in checks)),
}


_STAGES = {
    "batch": "checking how rows can be batched",
    "sharing": "checking how rows can read shared blocks",
    "reuse": "checking that what is reused equals what is computed",
}
"""What is said before a verdict is made: it may take seconds."""


class Checks:
    """A model's verdicts, each read from ``file`` or made when it is first asked for.

    ``file`` None keeps nothing. ``checked_at`` is the Unix time at which they were made.
    ``progress`` is told a line before each verdict that is made.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: Settings,
        file: VerdictFile | None = None,
        *,
        wall_clock: Callable[[], float] = time.time,
        progress: Progress = lambda line: None,
    ) -> None:
        self._model = model
        self._block_size = settings.apc.block_size
        self._file = file
        self._wall_clock = wall_clock
        self._progress = progress
        self._found: dict[str, Any] = {}
        self._fingerprint = ""
        self.checked_at = wall_clock()
        self.read_from_file = False
        if file is not None:
            try:
                self._fingerprint = fingerprint(model, settings)
            except OSError as error:
                log.debug("no fingerprint of %s: %s", model.status.path, error)
                self._file = None
            else:
                self._read(file)

    def batch(self) -> BatchVerdict:
        """How rows may be batched."""
        status = self._model.status
        return self._get("batch", lambda: probe(self._model.module, status.vocab_size))

    def sharing(self, shapes: Sequence[LayerShape], block_size: int) -> SharingVerdict:
        """How blocks of these layers may be read by several rows."""
        module, vocab_size = self._model.module, self._model.status.vocab_size
        return self._get("sharing", lambda: probe_sharing(module, vocab_size, shapes, block_size))

    def reuse(self) -> VerifyReport:
        """Whether what is stored goes on as if it had been computed."""
        module, vocab_size = self._model.module, self._model.status.vocab_size
        return self._get(
            "reuse", lambda: verify(module, vocab_size, self.batch(), self._block_size)
        )

    def sharing_failed(self, now: SharingVerdict) -> None:
        """Keep what was found in service, where a check had found another way to work."""
        self._found["sharing"] = now
        self.keep()

    def forget(self) -> None:
        """Make each verdict anew when it is asked for next."""
        self._found = {}
        self.checked_at = self._wall_clock()
        self.read_from_file = False

    def keep(self) -> None:
        """Write what has been found for the next start."""
        if self._file is None:
            return
        kept: dict[str, Any] = {"checked_at": self.checked_at}
        for name, verdict in self._found.items():
            plain = verdict.checks if isinstance(verdict, VerifyReport) else verdict
            kept[name] = [asdict(c) for c in plain] if isinstance(plain, tuple) else asdict(plain)
        self._file.put(self._fingerprint, kept)

    def _get(self, name: str, make: Callable[[], T]) -> T:
        if name not in self._found:
            self._progress(_STAGES[name])
            self._found[name] = make()
        found: T = self._found[name]
        return found

    def _read(self, file: VerdictFile) -> None:
        kept = file.get(self._fingerprint)
        if kept is None:
            return
        try:
            found = {name: _parsed(name, kept[name]) for name in _TYPES if name in kept}
            checked_at = float(kept["checked_at"])
            said = datetime.fromtimestamp(checked_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        except Exception as error:
            log.debug("kept verdicts are not used: %s", error)
            return
        self._found, self.checked_at, self.read_from_file = found, checked_at, bool(found)
        log.info("batching and reuse: checked at %s, not again", said)


def _parsed(name: str, value: Any) -> Any:
    """A verdict out of its JSON form; raises TypeError or ValueError for another form."""
    verdict = _TYPES[name](value) if isinstance(value, list) else _TYPES[name](**value)
    parts = verdict.checks if isinstance(verdict, VerifyReport) else (verdict,)
    for part in parts:
        for field, kind in type(part).__annotations__.items():
            if type(getattr(part, field)).__name__ != kind:
                raise TypeError(f"{name}.{field}: expected {kind}")
    if isinstance(verdict, VerifyReport) and not verdict.checks:
        raise ValueError(f"{name}: expected a check at least")
    return verdict
