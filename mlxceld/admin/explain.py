"""``POST cache/explain``: what a request would reuse, and why not more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from aiohttp import web

from mlxceld.admin.advice import Advice, Rendering, advise
from mlxceld.admin.body import read_body
from mlxceld.admin.context import CONTEXT
from mlxceld.admin.errors import AdminError
from mlxceld.admin.mutation import ask_engine, require_json
from mlxceld.admin.prompt_body import PromptBody, read_prompt
from mlxceld.admin.schemas import ExplainOrder
from mlxceld.engine.errors import NotReadyError
from mlxceld.engine.request import ANONYMOUS_SESSION
from mlxceld.models.errors import ChatTemplateError
from mlxceld.models.tool_prompt import tool_as_rendered
from mlxceld.models.volatile import drop_volatile_head

if TYPE_CHECKING:
    from mlxceld.models.text import TextCodec
    from mlxceld.prompt_cache.explain import ExplainReport

_AROUND = 16
"""How many tokens before and after the first differing one are shown."""


@dataclass(frozen=True, slots=True)
class _Rendered:
    tokens: list[int]
    signature: str


def register(app: web.Application, prefix: str) -> None:
    """Add the route."""
    app.add_routes([web.post(f"{prefix}/cache/explain", post_explain)])


async def post_explain(request: web.Request) -> web.Response:
    """Explain a request without sending it. It is no change: nothing is counted nor audited."""
    context = request.app[CONTEXT]
    require_json(request)
    limit = context.resolved.settings.max_body
    try:
        body = await read_body(request.clone(client_max_size=limit), ExplainOrder)
    except web.HTTPRequestEntityTooLarge:
        raise AdminError(413, f"the body is larger than {limit} bytes", limit=limit) from None
    volatile = context.resolved.settings.volatile_heads
    prompt = _as_served(read_prompt(body), volatile_heads=volatile)
    session = body.session or ANONYMOUS_SESSION
    try:
        codec = context.engine.text
    except NotReadyError as error:
        raise AdminError(503, str(error)) from error
    # Off the loop: the tokenizer may be busy with a long prompt.
    rendered = await asyncio.to_thread(_render, codec, prompt)
    _check_tokens(rendered.tokens, codec.vocab_size)
    engine = context.engine
    report = await ask_engine(
        context, lambda: engine.explain(rendered.tokens, session, rendered.signature)
    )
    answer = await asyncio.to_thread(_answer, codec, prompt, rendered, report)
    return web.json_response(answer)


def _as_served(prompt: PromptBody, *, volatile_heads: bool) -> PromptBody:
    """What of a request the public API renders."""
    if prompt.messages is None:
        return prompt
    tools = None if prompt.tool_choice == "none" else prompt.tools
    return replace(
        prompt,
        messages=drop_volatile_head(prompt.messages)[0] if volatile_heads else prompt.messages,
        tool_choice=None if prompt.tool_choice == "auto" else prompt.tool_choice,
        tools=[tool_as_rendered(tool) for tool in tools] if tools else None,
    )


def _render(codec: TextCodec, prompt: PromptBody) -> _Rendered:
    """The tokens and the signature that the public API would come to; raises AdminError."""
    if prompt.messages is None:
        return _Rendered(prompt.raw_tokens(codec), prompt.signature(codec))
    try:
        rendered = codec.render_chat(
            prompt.messages,
            tools=prompt.tools,
            template_kwargs=prompt.template_kwargs,
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
        )
    except ChatTemplateError as error:
        raise AdminError(400, str(error), field="messages") from None
    return _Rendered(list(rendered.tokens), prompt.signature(codec))


def _check_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    if not tokens:
        raise AdminError(400, "the prompt is empty, expected at least one token", field="prompt")
    if (worst := max(tokens)) >= vocab_size:
        raise AdminError(
            400, f"token id {worst} is not in the vocabulary of {vocab_size}", field="prompt"
        )


def _answer(
    codec: TextCodec, prompt: PromptBody, rendered: _Rendered, report: ExplainReport
) -> dict[str, Any]:
    divergence = None
    if report.diverges_at is not None:
        divergence = _surroundings(codec, rendered.tokens, report.diverges_at)
    rendering = _other_rendering(codec, prompt, report)
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
        "entry": None if report.entry is None else asdict(report.entry),
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


def _other_rendering(
    codec: TextCodec, prompt: PromptBody, report: ExplainReport
) -> Rendering | None:
    """Another way of rendering of which more of this prompt is stored than of its own."""
    own = report.entry.matched_tokens if report.entry is not None else 0
    known: Mapping[str, int] = {
        other.signature: other.matched_tokens
        for other in report.other_renderings
        if other.matched_tokens > own
    }
    for differs, signature in prompt.variants(codec) if known else ():
        if signature in known:
            return Rendering(known[signature], differs)
    most = max(known.values(), default=0)
    return Rendering(most, "unknown") if most >= report.min_prefix else None
