"""Refused requests, counted by endpoint and code."""

from __future__ import annotations

from collections import Counter

ENDPOINTS = ("chat", "completions", "messages", "responses")
"""The endpoints that generate: values of the label ``endpoint``."""

OTHER = "other"
"""Stands for every other route, and for every code that is not among :data:`CODES`."""

CODES = (
    "bad_request",
    "body_too_large",
    "chat_template_error",
    "context_length_exceeded",
    "host_not_allowed",
    "internal_error",
    "invalid_api_key",
    "invalid_json_schema",
    "invalid_request",
    "item_not_found",
    "method_not_allowed",
    "missing_required_parameter",
    "model_not_found",
    "not_ready",
    "origin_not_allowed",
    "previous_response_not_found",
    "queue_full",
    "response_not_found",
    "shutting_down",
    "text_too_long",
    "thread_unsupported_request",
    "timeout",
    "too_many_tokens",
    "too_many_values",
    "unknown_url",
    "unsupported_expectation",
    "unsupported_parameter",
    OTHER,
)
"""Values of the label ``code``: a closed list, so that no caller makes series."""


class RefusalCounts:
    """Counts refusals; used by one thread, read by any."""

    def __init__(self) -> None:
        self._counts = Counter({(e, c): 0 for e in (*ENDPOINTS, OTHER) for c in CODES})

    def add(self, endpoint: str, code: str) -> None:
        """Count one refusal; a name that is not among the labels counts as ``other``."""
        label = endpoint if endpoint in ENDPOINTS else OTHER
        self._counts[label, code if code in CODES else OTHER] += 1

    def counts(self) -> dict[tuple[str, str], int]:
        """How often each endpoint has refused with each code, zeros included."""
        return dict(self._counts)

    def before_the_engine(self) -> dict[str, int]:
        """By generating endpoint, what was refused without the engine counting it."""
        sums = dict.fromkeys(ENDPOINTS, 0)
        for (endpoint, code), count in self._counts.items():
            # The engine counts a full queue itself, as the outcome "rejected".
            if endpoint in sums and code != "queue_full":
                sums[endpoint] += count
        return sums
