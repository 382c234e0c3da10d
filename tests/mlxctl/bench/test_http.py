"""Responses are read from pieces cut anywhere, each with the time of its last byte."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxctl.bench.http import ResponseError, read_response

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"6\r\ndata: \r\n3;x=y\r\n{}\n\r\n0\r\n\r\n"
)
PLAIN = b"HTTP/1.0 404 Not Found\r\nServer: x\r\n\r\nno such route"


def cut(text: bytes, places: list[int]) -> list[tuple[float, bytes]]:
    edges = [0, *sorted({place % len(text) for place in places} - {0}), len(text)]
    pairs = enumerate(itertools.pairwise(edges))
    return [(float(number), text[begin:end]) for number, (begin, end) in pairs]


@given(st.lists(st.integers(1, 500), max_size=12))
def test_a_chunked_body_is_the_same_however_it_is_cut(places):
    pieces = cut(CHUNKED, places)
    status, body = read_response(pieces)
    assert (status, b"".join(piece for _, piece in body)) == (200, b"data: {}\n")
    assert [at for at, _ in body] == sorted(at for at, _ in body)


@given(st.lists(st.integers(1, 500), max_size=12))
def test_a_plain_body_ends_with_the_connection(places):
    status, body = read_response(cut(PLAIN, places))
    assert (status, b"".join(piece for _, piece in body)) == (404, b"no such route")


def test_a_piece_has_the_time_of_its_arrival():
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    _, body = read_response([(1.0, head), (2.0, b"2\r\na"), (3.0, b"b\r\n"), (4.0, b"0\r\n\r\n")])
    assert body == [(2.0, b"a"), (3.0, b"b")]


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [(0.0, b"HTTP/1.1 200 OK\r\n")],
        [(0.0, b"SSH-2.0-x\r\n\r\n")],
        [(0.0, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")],
    ],
)
def test_what_is_no_response_is_named(pieces):
    with pytest.raises(ResponseError):
        read_response(pieces)
