"""The bodies of the admin API's requests: what is validated is also what is documented."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

LARGEST = 2**63 - 1
"""The largest number that is taken: what an ``int64`` holds."""

Store = Literal["all", "kv", "snapshots"]

Size = Annotated[int, Field(ge=0, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Seconds = Annotated[float, Field(ge=0, le=float(LARGEST), allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class AdminBody(BaseModel):
    """Base of bodies: types as sent, never converted; null is absent; unknown fields refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NoFields(AdminBody):
    """An order that takes nothing."""


class BudgetPatch(AdminBody):
    """Which limits to change: at least one. 0 disables a store, a time of 0 is for ever."""

    capacity_bytes: Size | None = None
    max_entries: Count | None = None
    ttl_seconds: Seconds | None = None
    snapshot_capacity_bytes: Size | None = None
    snapshot_max_entries: Count | None = None
    snapshot_ttl_seconds: Seconds | None = None
    generation: Count | None = Field(
        None, description="Change only if the budget's generation is still this one (else 409)."
    )
    dry_run: bool | None = None


class FlushOrder(AdminBody):
    """What to drop; a session is named by its key or its short hash."""

    store: Store | None = None
    session: Text | None = None
    dry_run: bool | None = None


class TraceSwitch(AdminBody):
    """Whether cache events are logged."""

    enabled: bool


class PromptOrder(AdminBody):
    """A request of the public API that is not to be answered: its body, as it was sent.

    Fields that are not named here are the request's own and are read as its API reads them.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    messages: Any = Field(None, description="As chat completions or Messages take it.")
    input: Any = Field(None, description="As Responses takes it.")
    prompt: Any = Field(None, description="As /v1/completions takes it, but only one.")
    api: Literal["chat", "messages", "responses", "completions"] | None = Field(
        None, description="Whose body it is; by default its fields tell."
    )
    session: Text | None = Field(None, description="In place of the body's own session key.")

    def request(self) -> dict[str, Any]:
        """The body of the request alone."""
        return self.model_dump(exclude_unset=True, exclude=_OF_THE_ORDER)


_OF_THE_ORDER = {"api", "session", "pin", "wait"}


class WarmOrder(PromptOrder):
    """What to prefill and keep."""

    pin: bool | None = None
    wait: bool | None = Field(
        None, description="Answer when it is stored (the default), or at once with the id."
    )


class ExplainOrder(PromptOrder):
    """A request whose way through the cache is to be foretold."""
