"""Chat templates in their sandbox, with every loop counted.

Transformers compiles a chat template in a sandbox that bounds what the template can reach, but not
how long it runs. Here the same source is parsed in an equal sandbox, a call of the step counter is
put into the body of every loop, macro and block, and what one expression can make is bounded.
``install`` puts that compiler in the place of transformers' own, so that everything that
``apply_chat_template`` does around it stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import BuiltinMethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mlxceld.models.metering import (
    SIZE,
    Meter,
    check_size,
    current_meter,
    metered,
    step,
)

_RUNS_AGAIN: Any = (nodes.For, nodes.Macro, nodes.CallBlock)

_STEP = "__mlxceld_step__"
_JOIN = "__mlxceld_join__"
_COMPILED = 16

_WIDTH = re.compile(r"\d{7,}")
"""A width in a format that makes more than text of a page."""

_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})


class BoundedTemplate(jinja2.Template):
    """A template whose rendering is counted on the thread's meter, else on one of its own."""

    def render(self, *args: Any, **kwargs: Any) -> str:
        """See jinja2; raises RenderingCutOffError past a limit."""
        meter = current_meter()
        if meter is None:
            with metered(Meter()):
                return self.render(*args, **kwargs)
        messages = kwargs.get("messages")
        meter.begin(len(messages) if isinstance(messages, list) else 0)
        pieces, size = [], 0
        for piece in self.generate(*args, **kwargs):
            size += len(piece)
            check_size(size)
            pieces.append(piece)
        return "".join(pieces)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox of transformers, in which no single expression makes more than ``SIZE``."""

    template_class = BoundedTemplate
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Bound the operators by which small values become large."""
        if operator == "+":
            check_size(_size(left) + _size(right))
        elif operator == "*":
            _check_product(left, right)
        elif operator == "**":
            _check_power(left, right)
        elif isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Bound the methods of text by which small values become large."""
        # The sandbox wraps ``format``.
        method = getattr(__obj, "__wrapped__", __obj)
        if isinstance(method, BuiltinMethodType) and isinstance(method.__self__, str):
            _check_method(method.__self__, method.__name__, args)
        return super().call(__context, __obj, *args, **kwargs)


def install() -> None:
    """Have transformers compile chat templates with this module from now on."""
    _sandbox()
    # Imported here: the API knows this module and must not load transformers.
    from transformers.utils import chat_template_utils

    chat_template_utils._compile_jinja_template = compile_template


@lru_cache(maxsize=1)
def _sandbox() -> Any:
    """The environment in which transformers compiles, with its filters, functions and tags."""
    from transformers.utils import chat_template_utils

    # Of no text, since compiling folds constants: there ``10**10**10`` would be computed.
    return chat_template_utils._compile_jinja_template("").environment


@lru_cache(maxsize=_COMPILED)
def compile_template(source: str) -> jinja2.Template:
    """A chat template whose loops are counted; raises what jinja2 does for a wrong source."""
    environment = _environment_like(_sandbox())
    tree = environment.parse(source)
    _count_steps(tree, environment)
    code = environment.compile(tree)
    return environment.template_class.from_code(environment, code, environment.make_globals(None))


def _environment_like(environment: Any) -> BoundedEnvironment:
    bounded = BoundedEnvironment(
        trim_blocks=environment.trim_blocks,
        lstrip_blocks=environment.lstrip_blocks,
        keep_trailing_newline=environment.keep_trailing_newline,
        extensions=[type(extension) for extension in environment.extensions.values()],
    )
    bounded.policies.update(environment.policies)
    bounded.globals.update(environment.globals)
    bounded.tests.update(environment.tests)
    bounded.filters.update(environment.filters)
    bounded.filters["replace"] = _bounded_replace(environment.filters["replace"])
    for name, width_at in (("center", 0), ("indent", 0)):
        bounded.filters[name] = _bounded_width(environment.filters[name], width_at)
    # A test, since the code that jinja2 writes calls tests directly, and functions through checks
    # that take twenty times as long.
    bounded.tests[_STEP] = step
    bounded.filters[_JOIN] = _join
    return bounded


def _count_steps(tree: nodes.Template, environment: jinja2.Environment) -> None:
    """Put a step in front of every body that may run again, and bound every joining of texts."""
    for body in tree.find_all(_RUNS_AGAIN):
        # Of something that is not known before, or the call would be folded away.
        unknown = nodes.EnvironmentAttribute("autoescape")
        test = nodes.Test(unknown, _STEP, [], [], None, None)
        inner = body.body
        inner.insert(0, nodes.ExprStmt(test, lineno=body.lineno))
    for parent in list(tree.find_all(nodes.Node)):
        for name, value in parent.iter_fields():
            if isinstance(value, nodes.Concat):
                setattr(parent, name, _bounded_join(value))
            elif isinstance(value, list):
                value[:] = [
                    _bounded_join(one) if isinstance(one, nodes.Concat) else one for one in value
                ]
    tree.set_environment(environment)


def _bounded_join(concat: nodes.Concat) -> nodes.Filter:
    parts = nodes.List(concat.nodes, lineno=concat.lineno)
    return nodes.Filter(parts, _JOIN, [], [], None, None, lineno=concat.lineno)


def _join(parts: Iterable[Any]) -> str:
    texts = [str(part) for part in parts]
    check_size(sum(map(len, texts)))
    return "".join(texts)


def _bounded_replace(replace: Callable[..., Any]) -> Callable[..., Any]:
    @jinja2.pass_eval_context
    def bounded(eval_ctx: Any, s: Any, old: Any, new: Any, count: Any = None) -> Any:
        _check_replaced(str(s), str(old), str(new))
        return replace(eval_ctx, s, old, new, count)

    return bounded


def _bounded_width(make: Callable[..., Any], at: int) -> Callable[..., Any]:
    def bounded(value: Any, *args: Any, **kwargs: Any) -> Any:
        width = args[at] if len(args) > at else kwargs.get("width", 0)
        if isinstance(width, int):
            check_size(width * (1 + str(value).count("\n")))
        return make(value, *args, **kwargs)

    return bounded


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | bytes) else 0


def _check_product(left: Any, right: Any) -> None:
    for many, times in ((left, right), (right, left)):
        if isinstance(times, int):
            check_size(_size(many) * times)
    if isinstance(left, int) and isinstance(right, int):
        check_size((left.bit_length() + right.bit_length()) // 8)


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and right > 0:
        # Some 100 KB of a number: powers of powers grow faster than they can be computed.
        check_size(left.bit_length() * right * (SIZE // 1_000_000))


def _check_format(text: str) -> None:
    for width in _WIDTH.findall(text):
        check_size(SIZE + 1 if len(width) > 9 else int(width))


def _check_replaced(text: str, old: str, new: str) -> None:
    found = text.count(old) if old else len(text) + 1
    check_size(len(text) + found * len(new))


def _check_method(text: str, name: str, args: tuple[Any, ...]) -> None:
    if name in _PADDING and args and isinstance(args[0], int):
        check_size(args[0] * (1 + text.count("\t") if name == "expandtabs" else 1))
    elif name == "replace" and len(args) > 1 and all(isinstance(a, str) for a in args[:2]):
        _check_replaced(text, args[0], args[1])
    elif name == "join" and args and isinstance(args[0], list | tuple):
        check_size(sum(map(_size, args[0])) + len(text) * len(args[0]))
    elif name in ("format", "format_map"):
        _check_format(text)
