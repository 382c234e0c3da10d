"""What the admin API has done to the stores, on the engine thread and between two steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mlxceld.prompt_cache.radix import as_tokens
from mlxceld.prompt_cache.reports import PinError

if TYPE_CHECKING:
    from mlxceld.engine.request import GenerationRequest
    from mlxceld.engine.reuse import PromptReuse
    from mlxceld.prompt_cache.inventory import Inventoried
    from mlxceld.prompt_cache.key import Bucket
    from mlxceld.prompt_cache.reports import PinReport

STORES = ("all", "kv", "snapshots")
"""The names by which orders choose stores."""


def stores_of(reuse: PromptReuse, wanted: str) -> list[Inventoried[Any]]:
    """The stores that an order for ``wanted`` (one of :data:`STORES`) is about."""
    chosen: list[Inventoried[Any]] = []
    if wanted != "snapshots":
        chosen.append(reuse.store)
    # Only models that resume at snapshots have a store of them.
    snapshots = getattr(reuse, "snapshots", None)
    if wanted != "kv" and snapshots is not None:
        chosen.append(snapshots)
    return chosen


def pin_in(
    stores: Iterable[Inventoried[Any]], bucket: Bucket, request: GenerationRequest, *, keep: bool
) -> PinReport:
    """Keep a request's prompt in whichever store has it; raises PinError if none can."""
    tokens = as_tokens(request.tokens)
    refusal = PinError("there is no store")
    for store in stores:
        try:
            return store.pin(bucket, request.session, tokens, keep=keep)
        except PinError as error:
            refusal = error
    raise refusal
