"""The trie against a dictionary."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxceld.prompt_cache.radix import RadixIndex, as_tokens, common_length

SEQUENCES = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(st.tuples(st.booleans(), SEQUENCES, st.sampled_from("ab"))), SEQUENCES)
def test_it_holds_what_a_dictionary_would(steps, query):
    index: RadixIndex[int] = RadixIndex()
    model: dict[tuple[tuple[int, ...], str], int] = {}
    for number, (adding, tokens, tag) in enumerate(steps):
        key = (tuple(tokens), tag)
        if adding and key not in model:
            index.add(as_tokens(tokens), tag, number)
            model[key] = number
        elif not adding and key in model:
            assert index.remove(as_tokens(tokens), tag) == model.pop(key)
        index.check()
    assert len(index) == len(model)
    assert all(index.get(as_tokens(t), tag) == item for (t, tag), item in model.items())
    found = [
        (depth, tag, item)
        for depth, items in index.prefixes(as_tokens(query))
        for tag, item in items.items()
    ]
    expected = [
        (len(tokens), tag, item)
        for (tokens, tag), item in model.items()
        if tuple(query[: len(tokens)]) == tokens
    ]
    assert sorted(found) == sorted(expected)
    assert [depth for depth, *_ in found] == sorted(depth for depth, *_ in found)


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_common_length_is_the_first_difference(a, b):
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    assert common_length(as_tokens(a), as_tokens(b)) == (
        min(len(a), len(b)) if expected is None else expected
    )


def test_a_pair_is_stored_once_and_removed_once():
    index: RadixIndex[int] = RadixIndex()
    index.add(as_tokens([1, 2]), "a", 1)
    with pytest.raises(KeyError, match="stored under 'a'"):
        index.add(as_tokens([1, 2]), "a", 2)
    index.remove(as_tokens([1, 2]), "a")
    with pytest.raises(KeyError, match="no item"):
        index.remove(as_tokens([1, 2]), "a")
    with pytest.raises(ValueError, match="empty"):
        index.add(array("i"), "a", 1)


def test_a_long_chain_of_single_steps_needs_no_recursion():
    index: RadixIndex[int] = RadixIndex()
    tokens = as_tokens([7] * 3000)
    for length in range(1, 3001):
        index.add(tokens[:length], "a", length)
    assert sum(1 for _ in index.prefixes(tokens)) == 3000
    for length in range(1, 3001):
        index.remove(tokens[:length], "a")
    index.check()
    assert len(index) == 0
