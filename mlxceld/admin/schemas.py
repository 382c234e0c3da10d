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


class WarmOrder(AdminBody):
    """What to prefill and keep: either a conversation or a text."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)] | None = Field(
        None, description="A conversation as POST /v1/chat/completions takes it."
    )
    tools: list[dict[str, Any]] | None = None
    prompt: Text | None = Field(None, description="A text as POST /v1/completions takes it.")
    session: Text | None = None
    pin: bool | None = None
    wait: bool | None = Field(
        None, description="Answer when it is stored (the default), or at once with the id."
    )


class ExplainOrder(AdminBody):
    """A request that is not to be sent: what the public API takes of it for its prompt."""

    messages: Any = Field(None, description="A conversation; or else give prompt.")
    prompt: Any = Field(None, description="A text, or a list of token ids.")
    tools: Any = None
    tool_choice: Any = None
    chat_template_kwargs: Any = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    session: Text | None = None
