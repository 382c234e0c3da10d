"""Where a model's output stops being numbers, found layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from mlxceld.models.progress import Progress

_OTHER_TOKENS = 3
"""Tried besides the first: one token alone may be damaged, and the model still of use."""


def check_finite(module: Any, logits: mx.array, progress: Progress) -> None:
    """Refuse a model whose logits for its first token, and for others, are not numbers.

    Where only the first's are not, ``progress`` is told; requests that meet it fail then. Raises
    ArithmeticError that names the layer.
    """
    if _is_finite(logits):
        return
    where = _where(module, 0)
    width = int(logits.shape[-1])
    others = sorted({width * n // (_OTHER_TOKENS + 1) for n in range(1, _OTHER_TOKENS + 1)} - {0})
    if others and any(_is_finite(_forward(module, token)) for token in others):
        progress(f"warning: the logits after token 0 are not numbers: {where}")
        return
    raise ArithmeticError(f"its logits are not numbers (NaN or infinite): {where}")


def _where(module: Any, token: int) -> str:
    """The first place that is not made of numbers, in words."""
    for name, weight in tree_flatten(module.parameters()):
        if mx.issubdtype(weight.dtype, mx.floating) and not mx.isfinite(weight).all().item():
            return f"the weight {name} has NaN or infinite values"
    layers: Sequence[Any] = getattr(module, "layers", ())
    with _recorded(layers) as outputs:
        _forward(module, token)
    for number in sorted(outputs):
        if not all(mx.isfinite(output).all().item() for output in outputs[number]):
            return (
                f"layer {number} of {len(layers)} (counted from 0) is the first whose output is"
                f" not; its type is {outputs[number][0].dtype}"
            )
    return "all layers give numbers, and what comes after them does not"


@contextmanager
def _recorded(layers: Sequence[Any]) -> Iterator[dict[int, list[mx.array]]]:
    """What each layer gives in the forward passes within, by its number."""
    numbers = {id(layer): number for number, layer in enumerate(layers)}
    outputs: dict[int, list[mx.array]] = {}
    originals = {type(layer): type(layer).__call__ for layer in layers if layer is not None}

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(layer, *args, **kwargs)
            if id(layer) in numbers:
                arrays = result if isinstance(result, tuple | list) else (result,)
                found = [one for one in arrays if isinstance(one, mx.array)]
                outputs.setdefault(numbers[id(layer)], []).extend(found)
            return result

        return call

    try:
        for kind, original in originals.items():
            kind.__call__ = recording(original)
        yield outputs
    finally:
        for kind, original in originals.items():
            kind.__call__ = original


def _forward(module: Any, token: int) -> mx.array:
    logits: mx.array = module(mx.array([[token]]), cache=make_prompt_cache(module))
    mx.eval(logits)
    return logits


def _is_finite(logits: mx.array) -> bool:
    """Whether none is NaN or plus infinity; minus infinity rules a token out."""
    return math.isfinite(cast(float, logits[:, -1, :].max().astype(mx.float32).item()))
