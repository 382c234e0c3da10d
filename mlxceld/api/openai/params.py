"""From a request's fields to how the engine samples, and to the session it belongs to."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from mlxceld.api.openai.schemas import GenerationFields
from mlxceld.engine.request import ANONYMOUS_SESSION, SamplingParams

_SEED_MASK = 2**64 - 1


def sampling_params(
    fields: GenerationFields, *, logprobs: int | None, default_max_tokens: int | None
) -> list[SamplingParams]:
    """One for each choice; with a seed, choice ``i`` draws with ``seed + i``."""
    limit = fields.max_completion_tokens or fields.max_tokens or default_max_tokens
    common = SamplingParams(
        temperature=_or(fields.temperature, 1.0),
        top_p=_or(fields.top_p, 1.0),
        top_k=max(0, fields.top_k or 0),
        min_p=_or(fields.min_p, 0.0),
        repetition_penalty=_or(fields.repetition_penalty, 1.0),
        presence_penalty=_or(fields.presence_penalty, 0.0),
        frequency_penalty=_or(fields.frequency_penalty, 0.0),
        logit_bias=MappingProxyType({int(k): v for k, v in (fields.logit_bias or {}).items()}),
        max_tokens=limit,
        stop=_stops(fields.stop),
        ignore_eos=bool(fields.ignore_eos),
        logprobs=logprobs,
    )
    return [_seeded(common, fields.seed, index) for index in range(fields.n or 1)]


def session_of(fields: GenerationFields) -> str:
    """The session key: ``prompt_cache_key``, else ``user``; an empty one counts as absent."""
    nested = fields.extra_body
    keys = (
        fields.prompt_cache_key,
        nested.prompt_cache_key if nested else None,
        fields.user,
        nested.user if nested else None,
    )
    return next((key for key in keys if key), ANONYMOUS_SESSION)


def _seeded(params: SamplingParams, seed: int | None, index: int) -> SamplingParams:
    return params if seed is None else replace(params, seed=(seed + index) & _SEED_MASK)


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
