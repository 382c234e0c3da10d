"""Chat templates whose steps, time and room are bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from chat_templates import TEMPLATES
from mlxceld.models import metering
from mlxceld.models.errors import ChatTemplateError, RenderingCutOffError
from mlxceld.models.metering import Meter, metered
from mlxceld.models.template import _sandbox, compile_template
from mlxceld.models.text import TextCodec

MakeCodec = Callable[..., TextCodec]

ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 2 ~ 2?"},
    {"role": "assistant", "content": "4", "tool_calls": None},
    {"role": "user", "content": "And {{ this }}?"},
]


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_counted_templates_render_as_the_sandbox_does(name: str) -> None:
    source = TEMPLATES[name].source
    plain = _sandbox().from_string(source)
    values: dict[str, Any] = {
        "messages": MESSAGES,
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
    }
    try:
        expected: object = plain.render(**values)
    except Exception as error:
        expected = str(error)
    try:
        found: object = compile_template(source).render(**values)
    except Exception as error:
        found = str(error)
    assert found == expected


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in 'abc' %}{{ loop.index ~ '/' ~ loop.length ~ x }}{{ ', ' if not loop.last }}"
        "{% endfor %}",
        "{% for x in [[1, [2]], [3]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
        "{% for x in range(9) if x is odd %}{{ x }}{% else %}none{% endfor %}",
        "{% for x in range(9) %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}",
        "{% macro m(x) %}<{{ x }}{{ caller() if caller }}>{% endmacro %}{{ m(1) }}"
        "{% call m(2) %}in{% endcall %}",
        "{% set ns = namespace(n=0) %}{% for x in range(4) %}{% set ns.n = ns.n + x * 2 %}"
        "{% endfor %}{{ ns.n ~ 'a' * 3 ~ 2 ** 8 ~ '%03d' % 7 }}",
        "{{ {'a': [1, 'x']} | tojson }}{{ 'a-b'.replace('-', '+') }}{{ 'x' | center(5) }}"
        "{{ 'ab' | replace('a', 'c') | indent(2) }}{{ '{:>4}'.format(7) }}{{ 'a'.ljust(3) ~ 1 }}",
        "{% generation %}x{% endgeneration %}",
    ],
)
def test_nothing_else_changes(source: str) -> None:
    assert compile_template(source).render() == _sandbox().from_string(source).render()


@pytest.mark.parametrize(
    "source",
    [
        ENDLESS,
        "{% macro m(n) %}{% if n %}{{ m(n - 1) ~ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for x in [1, 2] recursive %}{{ loop([x, x]) }}{% endfor %}",
    ],
)
def test_what_does_not_end_is_cut_off(source: str) -> None:
    with metered(Meter(steps=20_000)), pytest.raises((RenderingCutOffError, RecursionError)):
        compile_template(source).render()


def test_the_error_names_the_steps_and_long_conversations_have_more() -> None:
    with metered(Meter(steps=5_000)):
        with pytest.raises(RenderingCutOffError, match="did not end within 5000 steps"):
            compile_template(ENDLESS).render()
        each = "{% for m in messages %}{% for n in messages %}{% endfor %}{% endfor %}done"
        assert compile_template(each).render(messages=MESSAGES * 20) == "done"
        more = 5_000 + 80 * metering.STEPS_PER_MESSAGE
        with pytest.raises(RenderingCutOffError, match=f"within {more} steps"):
            compile_template(ENDLESS).render(messages=MESSAGES * 20)


@pytest.mark.parametrize(
    "expression",
    [
        "'a' * 10**10",
        "[1] * 10**10",
        "10 ** (10 ** 8)",
        "(10 ** 9) ** (10 ** 9)",
        "'a' | center(10**10)",
        "'a' | indent(10**10)",
        "'a'.ljust(10**10)",
        "'\\t'.expandtabs(10**10)",
        "'%10000000000d' % 1",
        "'{:>10000000000}'.format(1)",
        "('a' * 60000).replace('a', 'b' * 60000)",
        "('a' * 60000) | replace('a', 'b' * 60000)",
        "('b' * 60000).join(['x'] * 60000)",
    ],
)
def test_no_expression_makes_what_is_too_large(expression: str) -> None:
    with pytest.raises(RenderingCutOffError, match="at most"):
        compile_template("{{ " + expression + " }}").render()


@pytest.mark.parametrize("operation", ["x ~ x", "x + x"])
def test_what_doubles_at_every_pass_is_cut_off(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "SIZE", 1 << 16)
    source = (
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set x = ns.x %}"
        "{% set ns.x = " + operation + " %}{% endfor %}"
    )
    with pytest.raises(RenderingCutOffError, match="131072"):
        compile_template(source).render()


def test_the_whole_text_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "SIZE", 1000)
    with pytest.raises(RenderingCutOffError, match="at most 1000"):
        compile_template("{% for i in range(999) %}abcde{% endfor %}").render()


def test_a_rendering_ends_with_its_time_or_its_client() -> None:
    for meter, said in (
        (Meter(deadline=0.0), "in time"),
        (Meter(abandoned=lambda: True), "the client left"),
    ):
        with metered(meter), pytest.raises(RenderingCutOffError, match=said) as cut:
            compile_template(ENDLESS).render()
        assert cut.value.timed_out is (said == "in time")


def test_other_threads_get_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    # However short the steps are together.
    monkeypatch.setattr(metering, "_PAUSE_AFTER_SECONDS", 0.0)
    pauses: list[float] = []
    with metered(Meter(steps=10_000, pause=pauses.append)), pytest.raises(RenderingCutOffError):
        compile_template(ENDLESS).render()
    assert len(pauses) >= 15
    assert all(pause > 0 for pause in pauses)


def test_threads_have_meters_of_their_own() -> None:
    errors: list[Exception] = []

    def endless() -> None:
        try:
            with metered(Meter(steps=1_000)):
                compile_template(ENDLESS).render()
        except RenderingCutOffError as error:
            errors.append(error)

    with metered(Meter(steps=10**9)):
        thread = threading.Thread(target=endless)
        thread.start()
        thread.join(30)
        assert len(errors) == 1
        assert compile_template("{% for i in range(3000) %}{% endfor %}x").render() == "x"


def test_a_models_template_is_bounded_and_says_so(make_codec: MakeCodec) -> None:
    codec = make_codec(
        "{{ messages[0]['content'] }}{% if messages[0]['content'] == 'loop' %}"
        + ENDLESS
        + "{% endif %}"
    )
    assert codec.render_chat([{"role": "user", "content": "hi"}]).text == "hi"
    with metered(Meter(steps=10_000)), pytest.raises(ChatTemplateError, match="did not end") as cut:
        codec.render_chat([{"role": "user", "content": "loop"}])
    assert isinstance(cut.value, RenderingCutOffError)


def test_compiling_computes_nothing() -> None:
    # Constants are folded where a template is compiled.
    compile_template("{{ 10 ** (10 ** 9) }}{{ 'a' * 10 ** 11 }}{{ 'b' | center(10 ** 11) }}")
