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
from mlxceld.prompt_cache.key import Bucket
from mlxceld.prompt_cache.radix import as_tokens

if TYPE_CHECKING:
    from mlxceld.engine.checks import Checks
    from mlxceld.engine.core import EngineCore
    from mlxceld.engine.prefix_cache import PrefixMemory
    from mlxceld.engine.publisher import Publisher
    from mlxceld.models.loading import LoadedModel
    from mlxceld.prompt_cache.prompt_cache import PromptCache
    from mlxceld.prompt_cache.reports import FlushReport, ResizeReport, VerifyReport


@dataclass(slots=True)
class Loaded:
    """What the engine thread has once a model is loaded."""

    model: LoadedModel
    core: EngineCore
    reuse: PrefixMemory
    cache: PromptCache
    checks: Checks


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
                return loaded.cache.entries(
                    command.store, session=command.session, limit=command.limit
                )
            case Pin():
                bucket = _bucket(loaded, command.template_signature)
                tokens = as_tokens(command.tokens)
                return loaded.cache.pin(bucket, command.session, tokens, keep=command.keep)
            case Unpin():
                return loaded.cache.unpin(command.digest)
            case Verify():
                return self._verify(loaded)
            case Explain():
                bucket = _bucket(loaded, command.template_signature)
                return loaded.cache.explain(bucket, command.session, command.tokens)

    def check_reuse(self, loaded: Loaded) -> VerifyReport:
        """Check reuse, keep all verdicts, and tell and do what follows from them."""
        from mlxceld.engine.setup import with_verdicts
        from mlxceld.engine.verify import obey

        report = loaded.checks.reuse()
        loaded.checks.keep()
        status = with_verdicts(
            loaded.model.status,
            loaded.core.verdict,
            loaded.reuse.reading.sharing,
            loaded.checks.checked_at,
        )
        status = obey(report, status, loaded.reuse, loaded.cache)
        if not report.passed:
            loaded.core.give_back()
        self._publisher.recorder.background_tokens_computed += report.tokens_computed
        self._publisher.model = status
        loaded.model = replace(loaded.model, status=status)
        return report

    def _flush(self, loaded: Loaded, command: Flush) -> FlushReport:
        loaded.core.pause()
        report = loaded.cache.flush(command.store, command.session, dry_run=command.dry_run)
        loaded.core.give_back()
        self._publish()
        return report

    def _resize(self, loaded: Loaded, command: Resize) -> ResizeReport:
        loaded.core.pause()
        report = loaded.cache.resize(
            command.changes, dry_run=command.dry_run, generation=command.generation
        )
        loaded.core.give_back()
        self._publish()
        return report

    def _verify(self, loaded: Loaded) -> VerifyReport:
        loaded.core.pause()
        loaded.checks.forget()
        pool = loaded.reuse.reading.block_shapes()
        if pool is not None:
            loaded.reuse.reading.sharing = loaded.checks.sharing(*pool)
        loaded.core.obey(loaded.checks.batch())
        report = self.check_reuse(loaded)
        self._publish()
        return report


def _bucket(loaded: Loaded, signature: str) -> Bucket:
    """The loaded model's namespace for prompts of a template signature."""
    return Bucket(loaded.model.status.id, signature)
