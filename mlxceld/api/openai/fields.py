"""Fields of OpenAI's requests that are not honoured, and what becomes of each."""

from __future__ import annotations

from mlxceld.api.known_fields import FieldTable, Rule, empty, one_of

_OTHER_GRAMMARS = Rule("it is not enforced; response_format is", empty)

_ENFORCED_ELSEWHERE = dict.fromkeys(
    (
        "grammar",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "json_schema",
        "structured_outputs",
    ),
    _OTHER_GRAMMARS,
)
"""How clients of llama.cpp and vLLM ask for a form of the answer."""

CHAT_FIELDS = FieldTable(
    refused={
        "audio": Rule("expected null: this model answers in text"),
        "modalities": Rule('expected ["text"]: this model answers in text', one_of([], ["text"])),
    },
    skipped={
        **_ENFORCED_ELSEWHERE,
        "moderation": Rule("nothing is moderated here"),
        "verbosity": Rule("the model is not told of it", one_of("medium")),
        "web_search_options": Rule("there is no web search here"),
    },
    harmless=frozenset(
        {
            "metadata",
            "prediction",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "store",
        }
    ),
)
"""Of ``POST /v1/chat/completions``."""

COMPLETION_FIELDS = FieldTable(skipped=_ENFORCED_ELSEWHERE)
"""Of ``POST /v1/completions``."""
