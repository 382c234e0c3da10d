"""Host and origin rules."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from mlxceld.web.hosts import HostGuard, host_name


def headers(*pairs: tuple[str, str]) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict(pairs))


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("Localhost:8484", "localhost"),
        ("localhost.", "localhost"),
        ("[::1]:8484", "::1"),
        ("::1", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        (" box.local:80 ", "box.local"),
    ],
)
def test_the_name_in_a_host_header(value: str, name: str) -> None:
    assert host_name(value) == name


@pytest.mark.parametrize(
    ("host", "welcome"),
    [
        ("localhost:8484", True),
        ("LOCALHOST", True),
        ("my.localhost", True),
        ("127.0.0.1:8484", True),
        ("127.9.9.9", True),
        ("[::1]:8484", True),
        ("box.internal:1", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8484", False),
        ("192.168.1.4:8484", False),
        ("2130706433", False),
        ("", False),
    ],
)
def test_on_loopback_only_known_names_are_served(host: str, welcome: bool) -> None:
    guard = HostGuard("127.0.0.1", ["Box.internal:9"], [])
    assert (guard.refused_host(headers(("Host", host))) is None) is welcome


def test_every_host_header_counts_and_none_is_no_browser() -> None:
    guard = HostGuard("localhost", [], [])
    assert guard.refused_host(headers()) is None
    both = headers(("Host", "localhost"), ("Host", "evil.example"))
    assert guard.refused_host(both) == "evil.example"


@pytest.mark.parametrize("bound_to", ["0.0.0.0", "192.168.1.4", "::"])
def test_off_loopback_every_name_is_served(bound_to: str) -> None:
    assert HostGuard(bound_to, [], []).refused_host(headers(("Host", "box.example"))) is None


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        ({}, None),
        ({"Sec-Fetch-Site": "same-origin"}, None),
        ({"Sec-Fetch-Site": "none"}, None),
        ({"Sec-Fetch-Site": "cross-site"}, "cross-site"),
        ({"Sec-Fetch-Site": "same-site", "Origin": "http://b.localhost"}, "http://b.localhost"),
        ({"Origin": "http://localhost:8484"}, None),
        ({"Origin": "http://LOCALHOST:8484"}, None),
        ({"Origin": "http://localhost:3000"}, "http://localhost:3000"),
        ({"Origin": "https://localhost:8484"}, "https://localhost:8484"),
        ({"Origin": "null"}, "null"),
        ({"Origin": "http://[broken"}, "http://[broken"),
        ({"Origin": "http://evil.example", "Authorization": "Bearer k"}, None),
        (
            {"Origin": "http://evil.example", "Authorization": "Bearer k", "Cookie": "a=b"},
            "http://evil.example",
        ),
        ({"Origin": "http://evil.example", "Authorization": "Basic k"}, "http://evil.example"),
        ({"Origin": "https://ui.example"}, None),
        ({"Origin": "https://ui.example", "Sec-Fetch-Site": "cross-site"}, None),
    ],
)
def test_pages_of_other_origins_may_not_post(sent: dict[str, str], refused: str | None) -> None:
    guard = HostGuard("127.0.0.1", [], ["https://ui.example/"])
    given = headers(("Host", "localhost:8484"), *sent.items())
    assert guard.refused_origin("POST", "http", given) == refused
    assert guard.refused_origin("GET", "http", given) is None


def test_of_two_origins_the_last_counts() -> None:
    guard = HostGuard("127.0.0.1", [], [])
    given = headers(
        ("Host", "localhost"), ("Origin", "http://localhost"), ("Origin", "http://evil.example")
    )
    assert guard.refused_origin("POST", "http", given) == "http://evil.example"


def test_a_default_port_is_the_same_as_none() -> None:
    guard = HostGuard("127.0.0.1", [], [])
    given = headers(("Host", "localhost"), ("Origin", "http://localhost:80"))
    assert guard.refused_origin("POST", "http", given) is None


def test_cors_is_off_unless_set() -> None:
    guard = HostGuard("127.0.0.1", [], [])
    assert guard.cors_headers("https://ui.example") == {}
    asked = headers(("Origin", "https://ui.example"), ("Access-Control-Request-Method", "POST"))
    assert guard.is_preflight("OPTIONS", asked)
    assert guard.preflight(asked) is None


def test_cors_answers_the_origins_that_are_set() -> None:
    guard = HostGuard("127.0.0.1", [], ["https://ui.example"])
    assert guard.cors_headers("https://ui.example")["Access-Control-Allow-Origin"] == (
        "https://ui.example"
    )
    assert guard.cors_headers("https://other.example") == {"Vary": "Origin"}
    asked = headers(
        ("Origin", "https://ui.example"),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "x-custom"),
    )
    answer = guard.preflight(asked, {"GET", "DELETE"})
    assert answer is not None
    assert answer["Access-Control-Allow-Headers"] == "x-custom"
    assert answer["Access-Control-Allow-Methods"] == "DELETE, GET, OPTIONS"
    assert not guard.is_preflight("POST", asked)
    assert not guard.is_preflight("OPTIONS", headers(("Origin", "https://ui.example")))


def test_a_star_stands_for_every_origin() -> None:
    guard = HostGuard("127.0.0.1", [], ["*"])
    assert guard.cors_headers("https://any.example")["Access-Control-Allow-Origin"] == (
        "https://any.example"
    )


@pytest.mark.parametrize(
    "value",
    [
        "[::1].evil.example",
        "[::1]evil",
        "[::1]:80.evil.example",
        "[::1",
        "[localhost]",
        "localhost:80.evil.example",
        "x:1.localhost",
        "",
    ],
)
def test_what_only_begins_or_ends_like_loopback_is_no_name(value: str) -> None:
    assert host_name(value) == ""
    guard = HostGuard("127.0.0.1", [""], [])
    assert guard.refused_host(headers(("Host", value))) == value


@pytest.mark.parametrize(
    "value",
    ["[::1]", "[::1]:8484", "::1", "127.0.0.1:8484", "LOCALHOST.:1", "localhost:", "a.localhost"],
)
def test_loopback_as_clients_write_it_is_welcome(value: str) -> None:
    assert HostGuard("127.0.0.1", [], []).refused_host(headers(("Host", value))) is None
