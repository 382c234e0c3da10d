"""Answers that have to fit a JSON schema, token by token, with llguidance."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mlxceld.models.lru import Lru
from mlxceld.models.schema_bounds import SchemaBoundsError, check_bounds

_KEPT = 32
"""Compiled schemas that are kept: agents send the same tools with every request."""

_LIMITS: dict[str, Any] = {
    "max_items_in_row": 2_000,
    "step_max_items": 50_000,
    "step_lexer_fuel": 200_000,
}
"""What one mask may cost: some 20 ms on a CPU core. Every other row of a batch waits for it."""

_SPACING: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As JSON writers do it. Free spacing would let a model write blanks for ever."""


_DATE = (
    "(?:[1-9][0-9]{3}|0[1-9][0-9]{2})-(?:"
    "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = (
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,6})?"
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_FORMATS = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}T{_TIME}$"}
"""Formats that llguidance takes too widely: it lets the 29th of February into every year."""

_VALUES = frozenset({"const", "enum", "default", "examples"})


class GrammarError(ValueError):
    """A schema that cannot be enforced; the text says which part of it."""


class JsonConstraint:
    """Which tokens may come next in one sequence. Not thread-safe; no MLX.

    What one step costs is limited; a schema that needs more raises GrammarError there, which ends
    this sequence alone.

    Until the tokens ``opens`` have come (the end of the model's reasoning) anything but an end of
    the answer may come; with none the schema holds from the first token on.
    """

    def __init__(
        self, matcher: Any, vocab_size: int, eos_ids: Collection[int], opens: Sequence[int] = ()
    ) -> None:
        self._matcher = matcher
        self._opens = tuple(opens)
        self._recent: list[int] = []
        self._active = not self._opens
        self._not_ends = b""
        if self._opens:
            bits = bytearray(b"\xff" * ((vocab_size + 7) // 8))
            for token in eos_ids:
                if token < vocab_size:
                    bits[token // 8] &= ~(1 << token % 8) & 0xFF
            self._not_ends = bytes(bits)

    def mask(self) -> bytes:
        """A bit for each token, lowest bit of the first byte first: 1 where it may come next."""
        if not self._active:
            return self._not_ends
        mask: bytes = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GrammarError(f"the schema became too costly: {_one_line(_error(self._matcher))}")
        return mask

    def accept(self, token: int) -> None:
        """Take the token that came; raises GrammarError for one that may not."""
        if self._active:
            if not self._matcher.consume_token(token) and self._matcher.is_error():
                raise GrammarError(
                    f"token {token} does not fit the schema, or fitting it became too costly:"
                    f" {_one_line(_error(self._matcher))}"
                )
            return
        self._recent = [*self._recent, token][-len(self._opens) :]
        self._active = tuple(self._recent) == self._opens


class JsonGrammar:
    """A schema made ready; each sequence gets a constraint of its own."""

    def __init__(self, matcher: Any, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids

    def constraint(self, opens: Sequence[int] = ()) -> JsonConstraint:
        """A fresh constraint that holds once the tokens ``opens`` have come."""
        return JsonConstraint(self._matcher.deep_copy(), self._vocab_size, self._eos_ids, opens)


class GrammarCompiler:
    """Compiles schemas for one tokenizer; several threads may do so at once."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: Collection[int]) -> None:
        """``tokenizer`` is a fast one of transformers; raises GrammarError for any other."""
        import llguidance.hf

        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._lock = threading.Lock()
        self._compiled: Lru[JsonGrammar] = Lru(_KEPT)
        self._by_text: Lru[JsonGrammar] = Lru(_KEPT)
        try:
            self._tokenizer = llguidance.hf.from_tokenizer(
                tokenizer, n_vocab=vocab_size, eos_token=sorted(eos_ids)
            )
        except Exception as error:
            raise GrammarError(
                f"structured output is not possible with this model's tokenizer: {error}"
            ) from error

    def compile(self, schema: Mapping[str, Any] | str) -> JsonGrammar:
        """Make a JSON schema ready; raises GrammarError, with the reason, if it cannot be.

        Of one that comes as text the text alone is looked at, if it is known.
        """
        if isinstance(schema, str):
            with self._lock:
                known = self._by_text.get(schema)
            if known is None:
                known = self._compiled_from(json.loads(schema))
                with self._lock:
                    self._by_text.put(schema, known)
            return known
        return self._compiled_from(schema)

    def _compiled_from(self, schema: Mapping[str, Any]) -> JsonGrammar:
        try:
            check_bounds(schema)
        except SchemaBoundsError as error:
            raise GrammarError(str(error)) from None
        # As llguidance's grammar_from_json_schema writes it, which keeps the interpreter while it
        # reads a schema; building a matcher lets other threads run.
        document = {**_with_exact_formats(schema), "x-guidance": _SPACING}
        source = json.dumps({"grammars": [{"name": "json_schema", "json_schema": document}]})
        with self._lock:
            known = self._compiled.get(source)
        if known is None:
            known = JsonGrammar(self._matcher(source), self._vocab_size, self._eos_ids)
            with self._lock:
                self._compiled.put(source, known)
        return known

    def _matcher(self, grammar: str) -> Any:
        """The grammar's matcher before its first token; no lock is held while it is built."""
        import llguidance

        try:
            matcher = llguidance.LLMatcher(
                self._tokenizer,
                grammar,
                log_level=0,
                limits=llguidance.LLParserLimits(verbose_errors=False, **_LIMITS),
            )
            first = matcher.deep_copy()
            if not matcher.is_error() and not any(first.compute_bitmask()):
                raise GrammarError("no text fits the schema")
        except GrammarError:
            raise
        except Exception as error:
            raise GrammarError(_one_line(str(error))) from error
        for one in (matcher, first):
            if one.is_error():
                raise GrammarError(_one_line(_error(one)))
        return matcher


class LazyCompiler:
    """A :class:`GrammarCompiler` that is built once, by who is first; others wait for it."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: Collection[int]) -> None:
        """``tokenizer`` is mlx-lm's wrapper of one of transformers."""
        self._arguments = (tokenizer, vocab_size, eos_ids)
        self._building = threading.Lock()
        self._made: GrammarCompiler | GrammarError | None = None

    def prepare(self) -> None:
        """Build it now; what goes wrong is told to who compiles."""
        with self._building:
            if self._made is None:
                tokenizer, vocab_size, eos_ids = self._arguments
                inner = getattr(tokenizer, "_tokenizer", tokenizer)
                try:
                    self._made = GrammarCompiler(inner, vocab_size, eos_ids)
                except GrammarError as error:
                    self._made = error

    def compile(self, schema: Mapping[str, Any] | str) -> JsonGrammar:
        """See :meth:`GrammarCompiler.compile`."""
        if self._made is None:
            self.prepare()
        if not isinstance(self._made, GrammarCompiler):
            raise GrammarError(str(self._made))
        return self._made.compile(schema)


def _with_exact_formats(schema: Any) -> Any:
    """A schema whose dates are given by patterns, which like formats are about strings only."""
    if isinstance(schema, list):
        return [_with_exact_formats(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    changed = {
        key: value if key in _VALUES else _with_exact_formats(value)
        for key, value in schema.items()
    }
    form = changed.get("format")
    if isinstance(form, str) and form in _FORMATS and "pattern" not in changed:
        del changed["format"]
        changed["pattern"] = _FORMATS[form]
    return changed


def _error(matcher: Any) -> str:
    text: str = matcher.get_error().partition("<non-verbose/>")[0]
    return "no text fits the schema" if text.startswith("NoExtension") else text


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500] or "the schema cannot be enforced"
