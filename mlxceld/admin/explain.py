"""``POST cache/explain``: what a request would reuse, and why not more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aiohttp import web

from mlxceld.admin.advice import Advice, advise
from mlxceld.admin.body import read_body
from mlxceld.admin.context import CONTEXT
from mlxceld.admin.errors import AdminError
from mlxceld.admin.mutation import ask_engine, require_json
from mlxceld.admin.prompt_body import read_prompt
from mlxceld.admin.renderings import other_rendering
from mlxceld.admin.schemas import ExplainOrder
from mlxceld.api.prompts import Prompt
from mlxceld.engine.errors import NotReadyError
from mlxceld.prompt_cache.key import session_hash

if TYPE_CHECKING:
    from mlxceld.models.text import TextCodec
    from mlxceld.prompt_cache.explain import ExplainReport

_AROUND = 16
"""How many tokens before and after the first differing one are shown."""


def register(app: web.Application, prefix: str) -> None:
    """Add the route."""
    app.add_routes([web.post(f"{prefix}/cache/explain", post_explain)])


async def post_explain(request: web.Request) -> web.Response:
    """Explain a request without sending it. It is no change: nothing is counted nor audited."""
    context = request.app[CONTEXT]
    require_json(request)
    limit = context.resolved.settings.max_body
    try:
        order = await read_body(request.clone(client_max_size=limit), ExplainOrder)
    except web.HTTPRequestEntityTooLarge:
        raise AdminError(413, f"the body is larger than {limit} bytes", limit=limit) from None
    try:
        codec = context.engine.text
    except NotReadyError as error:
        raise AdminError(503, str(error)) from error
    prompt = await read_prompt(context, order)
    _check_tokens(prompt.tokens, codec.vocab_size)
    engine = context.engine
    report = await ask_engine(
        context, lambda: engine.cache.explain(list(prompt.tokens), prompt.session, prompt.signature)
    )
    answer = await asyncio.to_thread(_answer, codec, prompt, report)
    return web.json_response(answer)


def _check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    if not tokens:
        raise AdminError(400, "the prompt is empty, expected at least one token", field="prompt")
    wrong = next((token for token in tokens if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise AdminError(
            400, f"token id {wrong} is not in the vocabulary of {vocab_size}", field="prompt"
        )


def _answer(codec: TextCodec, prompt: Prompt, report: ExplainReport) -> dict[str, Any]:
    divergence = None
    if report.diverges_at is not None:
        divergence = _surroundings(codec, prompt.tokens, report.diverges_at)
    rendering = other_rendering(codec, prompt.prepared, report)
    advice: Sequence[Advice] = advise(report, divergence, rendering)
    return {
        "outcome": report.outcome.value,
        "prompt_tokens": report.prompt_tokens,
        "reused_tokens": report.reused_tokens,
        "reason": None if report.reason is None else report.reason.value,
        "donation_reason": (
            None if report.donation_reason is None else report.donation_reason.value
        ),
        "store": report.store,
        "kind": report.kind,
        "min_prefix": report.min_prefix,
        "session": session_hash(prompt.session),
        "entry": None if report.entry is None else asdict(report.entry),
        "other_session": None if report.other_session is None else asdict(report.other_session),
        "departure": None if report.departure is None else asdict(report.departure),
        "divergence": divergence,
        "other_rendering": None if rendering is None else asdict(rendering),
        "advice": [asdict(item) for item in advice],
    }


def _surroundings(codec: TextCodec, tokens: Sequence[int], at: int) -> dict[str, Any]:
    """The caller's own text around a token; what the stored entry has there is nobody's to see."""

    def text(ids: Sequence[int]) -> str:
        return codec.decode(ids, skip_special_tokens=False)

    return {
        "token": at,
        "before": text(tokens[max(0, at - _AROUND) : at]),
        "text": text(tokens[at : at + 1]),
        "after": text(tokens[at + 1 : at + 1 + _AROUND]),
    }
