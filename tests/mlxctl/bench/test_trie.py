"""Distinct tokens: the nodes of a trie, with allowances, against a naive count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxctl.bench.trie import distinct_tokens

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=8)


def prefixes(prompts: list[list[int]]) -> set[tuple[int, ...]]:
    return {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)}


@given(PROMPTS, PROMPTS)
def test_it_counts_the_prefixes_that_are_new(prompts, warming):
    repeats = sum(
        tuple(prompt) in prefixes([*warming, *prompts[:number]])
        for number, prompt in enumerate(prompts)
    )
    new = prefixes(prompts) - prefixes(warming)
    assert distinct_tokens(prompts, warming=warming) == len(new) + repeats


@given(PROMPTS, PROMPTS, st.integers(1, 9))
def test_allowances_only_add_and_never_exceed_all_tokens(prompts, warming, min_prefix):
    least = len(prefixes(prompts) - prefixes(warming))
    count = distinct_tokens(prompts, warming=warming, min_prefix=min_prefix)
    assert least <= count <= sum(map(len, prompts)) + len(prompts)


@given(PROMPTS)
def test_where_nothing_is_worth_an_entry_all_is_computed(prompts):
    assert distinct_tokens(prompts, min_prefix=100) == sum(map(len, prompts))


HEAD = list(range(100, 140))


@pytest.mark.parametrize(
    ("prompts", "warming", "expected"),
    [
        # A shared prefix of 40, computed once.
        ([[*HEAD, 1], [*HEAD, 2], [*HEAD, 3]], [], 43),
        # The same, warmed: only what is left.
        ([[*HEAD, 1], [*HEAD, 2], [*HEAD, 3]], [[*HEAD, 9]], 3),
        # A warming prompt that shares too little to be adopted.
        ([[*HEAD, 1], [*HEAD, 2]], [[*HEAD[:5], 9]], 42),
        # Two of four have three tokens more in common: for each of them.
        ([[*HEAD, 1], [*HEAD, 2], [*HEAD, 3, 4, 5, 1], [*HEAD, 3, 4, 5, 2]], [], 40 + 2 + 8),
        # An exact repeat computes one token, and so does a prompt that another begins with.
        ([HEAD, HEAD, HEAD[:35]], [], 42),
        ([HEAD], [HEAD], 1),
        # A conversation: each prompt begins with the last one.
        ([HEAD, [*HEAD, 1, 2], [*HEAD, 1, 2, 3]], [], 43),
        # One that ends before it is worth sharing counts by itself.
        ([HEAD[:10], HEAD], [], 50),
        # Too short a preamble counts for each.
        ([[1, 2, *HEAD], [1, 2, 3, *HEAD], [1, 2, 4, *HEAD]], [], 42 + 43 + 43),
        # Half of all go on together until it is worth it.
        ([[*HEAD[:20], 1], HEAD, HEAD], [], 21 + 40 + 1),
        ([], [HEAD], 0),
    ],
)
def test_runs_of_less_than_32_tokens_count_for_each(prompts, warming, expected):
    assert distinct_tokens(prompts, warming=warming, min_prefix=32) == expected
