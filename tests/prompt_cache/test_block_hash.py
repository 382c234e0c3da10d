"""Block-hash chains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxceld.prompt_cache.block_hash import extend_chain
from mlxceld.prompt_cache.radix import as_tokens, common_length

TOKENS = st.lists(st.integers(0, 1), max_size=20)


@given(TOKENS, TOKENS, st.integers(1, 5), st.sampled_from(["sha256", "blake2b"]))
def test_equal_hashes_are_equal_beginnings(a, b, size, algorithm):
    first = extend_chain((), as_tokens(a), size, algorithm)
    second = extend_chain((), as_tokens(b), size, algorithm)
    equal = sum(x == y for x, y in zip(first, second, strict=False))
    shared = common_length(as_tokens(a), as_tokens(b))
    whole_end = len(a) == len(b) == shared
    assert equal == (-(-shared // size) if whole_end else shared // size)
    assert len(first) == -(-len(a) // size)


@given(TOKENS, st.integers(0, 20), st.integers(1, 5))
def test_a_chain_is_extended_from_any_whole_block(tokens, cut, size):
    ids = as_tokens(tokens)
    known = min(cut, len(ids) // size)
    whole = extend_chain((), ids, size, "sha256")
    assert extend_chain(whole[:known], ids, size, "sha256") == whole


def test_media_algorithm_and_order_tell_chains_apart():
    ids = as_tokens([1, 2, 3, 4])
    plain = extend_chain((), ids, 2, "sha256")
    assert extend_chain((), ids, 2, "sha256", media="ab")[0] != plain[0]
    assert extend_chain((), ids, 2, "blake2b")[0] != plain[0]
    # The second block's tokens are the same; what came before them is not.
    assert extend_chain((), as_tokens([2, 1, 3, 4]), 2, "sha256")[1] != plain[1]
    assert all(len(digest) == 32 for digest in plain)


def test_an_unknown_algorithm_is_an_error():
    with pytest.raises(KeyError):
        extend_chain((), as_tokens([1]), 2, "md5")
