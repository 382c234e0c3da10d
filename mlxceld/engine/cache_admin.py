"""What commands do to the stores: on the engine thread and between two steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlxceld.engine.commands import (
    Command,
    Explain,
    Flush,
    ListEntries,
    Pin,
    Resize,
    Unpin,
    Verify,
)
from mlxceld.engine.errors import NotReadyError
from mlxceld.prompt_cache.explain import Explainer, ExplainReport, explain
from mlxceld.prompt_cache.inventory import list_entries
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.radix import as_tokens
from mlxceld.prompt_cache.reports import FlushReport, PinError, PinReport, ResizeReport

if TYPE_CHECKING:
    from mlxceld.engine.checks import Checks
    from mlxceld.engine.core import EngineCore
    from mlxceld.engine.publisher import Publisher
    from mlxceld.engine.reuse import PromptReuse
    from mlxceld.models.loading import LoadedModel
    from mlxceld.prompt_cache.ledger import Ledger
    from mlxceld.prompt_cache.reports import VerifyReport


@dataclass(slots=True)
class Loaded:
    """What the engine thread has once a model is loaded."""

    model: LoadedModel
    core: EngineCore
    reuse: PromptReuse
    checks: Checks


def stores_of(reuse: PromptReuse, wanted: str) -> list[Ledger[Any]]:
    """The stores that a command for ``wanted`` (all, kv or snapshots) is about."""
    chosen: list[Ledger[Any]] = []
    if wanted != "snapshots":
        chosen.append(reuse.store)
    # Only models that resume at snapshots have a store of them.
    if wanted != "kv" and reuse.snapshots is not None:
        chosen.append(reuse.snapshots)
    return chosen


class CacheAdmin:
    """Carries out commands; belongs to the engine thread.

    ``loaded`` gives what there is, or None; ``publish`` replaces the published status.
    """

    def __init__(
        self, loaded: Callable[[], Loaded | None], publisher: Publisher, publish: Callable[[], None]
    ) -> None:
        self._loaded = loaded
        self._publisher = publisher
        self._publish = publish

    def run(self, command: Command) -> Any:
        """Do what a command says, and return its report.

        Raises NotReadyError without a model, and what the command's store does.
        """
        loaded = self._loaded()
        if loaded is None:
            raise NotReadyError("no model is loaded")
        match command:
            case Flush():
                return self._flush(loaded, command)
            case Resize():
                return self._resize(loaded, command)
            case ListEntries():
                stores = stores_of(loaded.reuse, command.store)
                return list_entries(stores, session=command.session, limit=command.limit)
            case Pin():
                return _pin(loaded, command)
            case Unpin():
                return _unpin(loaded, command)
            case Verify():
                return self._verify(loaded)
            case Explain():
                return _explain(loaded, command)

    def check_reuse(self, loaded: Loaded) -> VerifyReport:
        """Check reuse, keep all verdicts, and tell and do what follows from them."""
        from mlxceld.engine.setup import with_verdicts
        from mlxceld.engine.verify import obey

        report = loaded.checks.reuse()
        loaded.checks.keep()
        status = with_verdicts(
            loaded.model.status,
            loaded.core.verdict,
            loaded.reuse.sharing,
            loaded.checks.checked_at,
        )
        status = obey(report, status, loaded.reuse)
        if not report.passed:
            loaded.core.give_back()
        self._publisher.recorder.background_tokens_computed += report.tokens_computed
        self._publisher.model = status
        loaded.model = replace(loaded.model, status=status)
        return report

    def _flush(self, loaded: Loaded, command: Flush) -> FlushReport:
        loaded.core.pause()
        report = FlushReport(0, 0, 0, command.dry_run)
        for store in stores_of(loaded.reuse, command.store):
            report = report.plus(store.flush(command.session, dry_run=command.dry_run))
        loaded.core.give_back()
        self._publish()
        return report

    def _resize(self, loaded: Loaded, command: Resize) -> ResizeReport:
        loaded.core.pause()
        reuse = loaded.reuse
        report = reuse.store.resize(
            command.changes, dry_run=command.dry_run, generation=command.generation
        )
        if reuse.snapshots is not None:
            report = report.plus(reuse.snapshots.resize(command.changes, dry_run=command.dry_run))
        loaded.core.give_back()
        self._publish()
        return report

    def _verify(self, loaded: Loaded) -> VerifyReport:
        loaded.core.pause()
        loaded.checks.forget()
        pool = loaded.reuse.block_shapes()
        if pool is not None:
            loaded.reuse.sharing = loaded.checks.sharing(*pool)
        loaded.core.obey(loaded.checks.batch())
        report = self.check_reuse(loaded)
        self._publish()
        return report


def _pin(loaded: Loaded, command: Pin) -> PinReport:
    """Keep a prompt in whichever store has it; raises PinError if none can."""
    bucket = Bucket(loaded.model.status.id, command.template_signature)
    tokens = as_tokens(command.tokens)
    refusal = PinError("there is no store")
    for store in stores_of(loaded.reuse, "all"):
        try:
            return store.pin(bucket, command.session, tokens, keep=command.keep)
        except PinError as error:
            refusal = error
    raise refusal


def _unpin(loaded: Loaded, command: Unpin) -> PinReport | None:
    found = (store.unpin(command.digest) for store in stores_of(loaded.reuse, "all"))
    return next((report for report in found if report is not None), None)


def _explain(loaded: Loaded, command: Explain) -> ExplainReport:
    bucket = Bucket(loaded.model.status.id, command.template_signature)
    if isinstance(loaded.reuse, Explainer):
        return loaded.reuse.explain(bucket, command.session, command.tokens)
    return explain(loaded.reuse.store, bucket, command.session, command.tokens)
