"""Listings of items: one line a row at any width, and identifiers by their first characters."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mlxctl.entriestable import entries_table
from mlxctl.errors import CtlError
from mlxctl.identifiers import whole_id
from mlxctl.rowlisting import RowListing, shortened


def printed(listing: RowListing, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(listing)
    return console.file.getvalue().splitlines()


def entry(digest: str) -> dict[str, object]:
    return {
        "digest": digest,
        "store": "snapshots",
        "session": "0123456789abcdef",
        "client": "a-client-with-a-name",
        "tokens": 123_456,
        "blocks": 7,
        "blocks_shared": 100,
        "blocks_own": 10,
        "state_bytes": 123_456,
        "bytes": 123_456_789,
        "age_seconds": 4000,
        "idle_seconds": 4000,
        "hits": 12,
        "origin": "completion",
        "pins": 1,
    }


@pytest.mark.parametrize("width", [40, 80, 120, 400])
def test_entries_are_one_line_each(width):
    digests = ["4f2a91c07be31d55", "4f2a91c07ce31d55", "90aa91c07be31d55"]
    lines = printed(entries_table([entry(digest) for digest in digests]), width)
    assert len(lines) == 4
    # What is shown of a digest finds it again.
    shown = [line.split()[0] for line in lines[1:]]
    assert [whole_id(one, digests, "entry") for one in shown] == digests


def test_a_wide_terminal_shows_everything():
    heading, row = printed(entries_table([entry("4f2a91c07be31d55")]), 400)
    assert len(heading.split()) == 13
    assert "4f2a91c07be31d55" in row
    assert "0123456789abcdef" in row


def test_columns_are_dropped_in_their_order():
    listing = RowListing(("A", "B", "C>"), [("aaaa", "bbbb", "1")], dropped=("B", "A"))
    assert printed(listing, 20)[1].split() == ["aaaa", "bbbb", "1"]
    assert printed(listing, 11)[1].split() == ["aaaa", "1"]


@given(st.lists(st.text("ab0", min_size=1, max_size=20)))
def test_shortened_identifiers_differ_where_the_whole_ones_do(cells):
    short = shortened(cells)
    assert len(set(short)) == len(set(cells))
    assert all(one.startswith(cut) for one, cut in zip(cells, short, strict=True))


def test_an_id_is_found_by_its_beginning_unless_several_begin_so():
    known = ["abc1", "abd2", "ab", "xyz"]
    assert whole_id("xy", known, "request") == "xyz"
    assert whole_id("ab", known, "request") == "ab"
    assert whole_id("nothing", known, "request") == "nothing"
    with pytest.raises(CtlError) as caught:
        whole_id("a", known, "request")
    assert caught.value.exit_code == 2
    assert "abc1, abd2, ab" in caught.value.message
